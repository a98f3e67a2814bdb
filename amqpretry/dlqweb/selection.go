package dlqweb

import (
	"hash/maphash"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// seed of all hashes of messages: they are compared within one process.
var seed = maphash.MakeSeed()

// identity tells dead letters from each other: by their UUID, when and how often they have failed,
// and their body. Two with the same are copies of one message.
func identity(l *dlq.DeadLetter) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	maphash.WriteComparable(&h, [4]any{l.UUID, l.LastFailure.UnixMilli(), l.Replays, l.Calls})
	_, _ = h.Write(l.Message.Body)

	return h.Sum64()
}

// selection is which messages were counted: 8 bytes for each.
type selection []uint64

// filter selects those and no others: neither what has come since, nor what has taken a place of
// theirs. It says the same as often as it is asked, as a run with a canary goes through the queue
// twice.
func (s selection) filter() dlq.Filter {
	counted := make(map[uint64]struct{}, len(s))
	for _, key := range s {
		counted[key] = struct{}{}
	}

	return dlq.Filter{Where: func(l *dlq.DeadLetter) bool {
		_, was := counted[identity(l)]
		return was
	}}
}

// present is what lies in a dead-letter queue, for an import that must not double it. A message
// without a UUID cannot be told from others like it, so it is always imported.
type present struct {
	newest map[uint64]life
	all    map[uint64]bool
	// undo tells that a message which was replayed and has failed again is there as well.
	undo bool
}

// life is how far a message has come.
type life struct {
	replays int
	failed  int64
}

func (p *present) add(l *dlq.DeadLetter) {
	if l.UUID == "" {
		return
	}
	p.all[identity(l)] = true
	uuid := maphash.String(seed, l.UUID)
	now := life{l.Replays, l.LastFailure.UnixMilli()}
	if before, known := p.newest[uuid]; !known || before.replays < now.replays ||
		before.replays == now.replays && before.failed < now.failed {
		p.newest[uuid] = now
	}
}

// has tells whether a message of a file is there.
func (p *present) has(l *dlq.DeadLetter) bool {
	if l.UUID == "" {
		return false
	}
	if p.all[identity(l)] {
		return true
	}
	now, known := p.newest[maphash.String(seed, l.UUID)]

	return p.undo && known && (now.replays > l.Replays || now.failed > l.LastFailure.UnixMilli())
}
