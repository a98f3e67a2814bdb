package dlq

import (
	"context"
	"hash/maphash"
)

// present is what lies in a dead-letter queue, for an import that must not double it. A message
// without a UUID cannot be told from others like it, so it is always imported. In the queue are
// also those that have failed again since they were replayed, and those that a run had sent and not
// yet taken out when it ended.
type present struct {
	newest      map[uint64]life
	all         map[uint64]bool
	failedAgain bool
}

// life is how far a message has come.
type life struct {
	replays int
	failed  int64
}

// present reads the whole queue.
func (q *Queue) present(ctx context.Context, failedAgain bool) (*present, error) {
	p := &present{newest: map[uint64]life{}, all: map[uint64]bool{}, failedAgain: failedAgain}
	for l, err := range q.Browse(ctx, Filter{}) {
		if err != nil {
			return nil, err
		}
		if l.UUID == "" {
			continue
		}
		p.all[identity(&l)] = true
		uuid, now := maphash.String(seed, l.UUID), life{l.Replays, l.LastFailure.UnixMilli()}
		if before, known := p.newest[uuid]; !known || before.replays < now.replays ||
			before.replays == now.replays && before.failed < now.failed {
			p.newest[uuid] = now
		}
	}

	return p, nil
}

// has tells whether a message of a file is there.
func (p *present) has(l *DeadLetter) bool {
	if l.UUID == "" {
		return false
	}
	if p.all[identity(l)] {
		return true
	}
	now, known := p.newest[maphash.String(seed, l.UUID)]

	return p.failedAgain && known && (now.replays > l.Replays || now.failed > l.LastFailure.UnixMilli())
}
