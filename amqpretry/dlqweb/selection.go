package dlqweb

import (
	"hash/maphash"
	"sync"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// seed of all hashes of messages: they are compared within one process.
var seed = maphash.MakeSeed()

// identity tells dead letters from each other: the UUID, where it failed in time, and what it carries. Two with the same
// are copies of one message.
func identity(l *dlq.DeadLetter) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	maphash.WriteComparable(&h, [4]any{l.UUID, l.LastFailure.UnixMilli(), l.Replays, l.Calls})
	_, _ = h.Write(l.Message.Body)

	return h.Sum64()
}

// selection is which messages were counted, and how often: 8 bytes for each.
type selection struct {
	mu   sync.Mutex
	keys []uint64
}

func (s *selection) add(l *dlq.DeadLetter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = append(s.keys, identity(l))
}

// filter selects those and no others: neither what has come since, nor what has taken a place of theirs.
func (s *selection) filter() dlq.Filter {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := make(map[uint64]int, len(s.keys))
	for _, key := range s.keys {
		left[key]++
	}

	return dlq.Filter{Where: func(l *dlq.DeadLetter) bool {
		key := identity(l)
		if left[key] == 0 {
			return false
		}
		left[key]--

		return true
	}}
}

// present is what lies in a dead-letter queue, for an import that must not double it. A message without a UUID cannot be
// told from others like it, so it is never taken for there.
type present struct {
	newest map[uint64]life
	all    map[uint64]bool
	// undo tells that later lives of a message count as well: what was replayed and has failed again.
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
