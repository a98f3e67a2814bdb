package topology

import (
	"time"

	"github.com/amqpretry/watermill-retry/internal/management"
)

const (
	// settling is what a copy may need that was routed just before the queue was unbound, from the exchange into the
	// queue.
	settling = 2 * time.Second
	// renewals of the statistics that prove what they say; see freshness.
	renewals = 3
	// classicLag is how old the statistics of a classic queue may be: 5 s until it tells, and 5 s until they are
	// collected.
	classicLag = 12 * time.Second
)

// freshness finds out whether what the API says of a queue was so after the queue was unbound.
//
// The statistics have no time on them, and how often they are renewed is configuration that the API does not tell. But
// those of a quorum queue have a counter of the work of its leader, which is taken together with the number of messages
// and which taking them makes grow. The queue takes them, and the API collects them later. So of the first value that
// is new after the unbinding it can only be said that it was collected after that. The second was taken after the first
// was collected: after the unbinding. The third shows that the collection of the second is complete.
//
// What is on its way into a quorum queue without a majority is in no number; it counts when a majority is there again.
// If the queue were deleted just then, it would be lost, and confirmed all the same. So all this must be with a
// majority.
//
// Those of an idle classic queue are not renewed, so time must do. But a classic queue is also asked itself by the
// deletion.
type freshness struct {
	classic bool
	since   time.Time // the unbinding

	leader     string
	reductions int64
	renewed    int
	certainBy  bool
}

// add takes in what the API said at a time.
func (f *freshness) add(q management.Queue, at time.Time) {
	switch {
	case f.classic:
		f.certainBy = at.Sub(f.since) >= settling+classicLag
	case at.Sub(f.since) < settling:
	case q.Reductions == nil || !q.HasMajority():
		f.leader, f.renewed = "", 0
	case f.leader != place(q) || *q.Reductions < f.reductions:
		// The first one, or another leader, which counts for itself.
		f.leader, f.reductions, f.renewed = place(q), *q.Reductions, 0
	case *q.Reductions > f.reductions:
		f.reductions = *q.Reductions
		f.renewed++
	}
}

// place is where the numbers come from.
func place(q management.Queue) string { return q.Leader + " " + q.Node }

// certain tells whether the answer that was added last is younger than the unbinding.
func (f *freshness) certain() bool { return f.certainBy || f.renewed >= renewals }
