package dlqweb

import (
	"context"
	"net/http"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb/internal/snapshot"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// Messages that wait for a main queue are read into a snapshot like dead letters, but only when
// somebody with the role view asks for that: a read can make them late.

// kindRestore is the undo of a run that has cancelled messages.
const kindRestore dlq.Kind = "restore"

// OfWaits tells whether it is about messages that wait.
func (w wish) OfWaits() bool {
	return w.Kind == dlq.Cancel || w.Kind == dlq.SendNow || w.Kind == dlq.Postpone || w.Kind == kindRestore
}

// target is what it is about.
func (w wish) target() target { return target{w.Queue, w.MainQueue, w.OfWaits()} }

// PageName is that of the page about a target.
func (t target) PageName() string {
	if t.Waits {
		return "waiting"
	}

	return "queue"
}

// PageName is that of the page about its messages.
func (w wish) PageName() string { return w.target().PageName() }

// waits are the messages that wait for the main queue of a target.
func (c *Console) waits(ctx context.Context, t target) (*dlq.Waits, error) {
	client, err := c.client(ctx)
	if err != nil {
		return nil, err
	}

	return client.Waits(topology.Target{Key: t.MainQueue}, c.config.Policies.For(t.MainQueue))
}

// reader reads dead letters as Queue.Read does, or messages that wait.
type reader func(ctx context.Context, began func(dlq.Stat), each func(*dlq.DeadLetter) bool) error

func (c *Console) reader(ctx context.Context, t target) (reader, error) {
	if !t.Waits {
		client, err := c.client(ctx)
		if err != nil {
			return nil, err
		}
		return client.DeadLetterQueue(t.Queue, t.MainQueue).Read, nil
	}
	waits, err := c.waits(ctx, t)
	if err != nil {
		return nil, err
	}

	return func(ctx context.Context, began func(dlq.Stat), each func(*dlq.DeadLetter) bool) error {
		queues, err := waits.Queues(ctx)
		if err != nil {
			return err
		}
		var read dlq.Stat
		for _, q := range queues {
			read.Ready += q.Ready
		}
		began(read)
		for l, err := range waits.Browse(ctx, dlq.Filter{}) {
			if err != nil {
				return err
			}
			each(&l)
		}

		return nil
	}, nil
}

// restored is how many lines of an undo file earlier runs have sent to wait again.
func (k *runs) restored(id string) (lines int) {
	for _, r := range k.list() {
		if r.UndoOf == id && !r.Confirmed.IsZero() {
			lines = max(lines, r.Lines)
		}
	}

	return lines
}

// apiWaiting lists messages that wait, those that are due first.
func (c *Console) apiWaiting(r *http.Request, who visitor) (any, error) {
	if err := who.needs(RoleView); err != nil {
		return nil, err
	}
	size, err := pageLimit(r.URL.Query())
	if err != nil {
		return nil, err
	}
	v, now, found, err := c.results(r, who, true, "limit")
	if err != nil {
		return nil, err
	}

	return struct {
		queueHead
		Matched  int                `json:"matched"`
		Messages []snapshot.Summary `json:"messages"`
	}{headOf(v, now), found.Matched, now.Page(found, snapshot.Soonest, 0, size)}, nil
}
