package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// defaultWatch is longer than the default policy retries a message.
const defaultWatch = 15 * time.Minute

// nobodyTime is how long the target may be without a consumer, as in a deployment.
const nobodyTime = 30 * time.Second

// Canary is how many messages go first, to see what becomes of them. The others follow when they
// were handled: whoever consumes the target with this library says so. Nobody else is believed: not
// a queue that is empty, and not a dead-letter queue to which nothing has come back yet.
type Canary struct {
	// Messages is how many.
	Messages int `json:"canary,omitempty"`
	// Watch is how long to wait until it is known of each of them. Default: 15 minutes, as the
	// default policy retries for up to 12m36s. It is over as soon as it is known.
	Watch time.Duration `json:"-"`
	// Tolerate is how many may fail for good, which is fewer than Messages.
	Tolerate int `json:"tolerate,omitempty"`
	// OnChange is told of every news, from one goroutine. Nil means nobody.
	OnChange func(CanaryReport) `json:"-"`
}

// CanaryReport is what has become of a canary.
type CanaryReport struct {
	// Sent is the number of messages that were sent first.
	Sent         int `json:"sent"`
	Handled      int `json:"handled"`
	DeadLettered int `json:"dead_lettered"`
	Dropped      int `json:"dropped"`
	// Unresolved is of how many nobody knows yet whether they will be handled.
	Unresolved int `json:"unresolved"`
	// Retried are those of them that have failed, or were postponed, and wait for another attempt.
	Retried int `json:"retried"`
	// Watched is false where no others were to follow: what becomes of it was not waited for.
	Watched bool `json:"watched"`
	// Stopped says why the others were left where they are; empty if they followed, and while it is
	// watched.
	Stopped string `json:"stopped,omitempty"`
}

func (r CanaryReport) failed() int { return r.DeadLettered + r.Dropped }

// String tells of it in a few words.
func (r CanaryReport) String() string {
	parts := []string{fmt.Sprintf("%d of %d handled", r.Handled, r.Sent)}
	for _, p := range []struct {
		n    int
		what string
	}{
		{r.DeadLettered, "failed again"}, {r.Dropped, "dropped by the policy"}, {r.Retried, "waiting for a retry"},
		{r.Unresolved - r.Retried, "without a result yet"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}

	return strings.Join(parts, ", ")
}

// canary listens to what becomes of the messages that a run has sent first. It listens at the queue
// that is the run's lock.
type canary struct {
	Canary

	run, target string
	queue       string // at which it listens
	asker       asker
	notices     <-chan amqp091.Delivery

	sent    int
	watched bool
	last    map[int]wire.Outcome // by number
}

func (r *run) listen(c Canary, q *Queue, name, target string) (*canary, error) {
	asker, queue := q.client.asker(r.link), lockName(q.name)
	var notices <-chan amqp091.Delivery
	err := asker.ask(func() error {
		channel, err := r.link.Channel()
		if err != nil {
			return err
		}
		notices, err = channel.Consume(queue, "", true, false, false, false, nil)

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot receive the results of the canary: %w",
			explainAccess(rabbitmq.KindQueue, queue, err))
	}

	return &canary{Canary: c, run: name, target: target, queue: queue, asker: asker, notices: notices,
		last: map[int]wire.Outcome{}}, nil
}

// next is what the next message carries.
func (c *canary) next() string {
	c.sent++

	return wire.Canary{Queue: c.queue, Run: c.run, Number: c.sent}.Text()
}

// unsent takes the last one back.
func (c *canary) unsent() { c.sent-- }

// consumers is how many the target has.
func (c *canary) consumers() (int, error) {
	q, err := inspect(c.asker, "target", c.target)
	return q.Consumers, err
}

// watch returns when the verdict is known: with an empty Stopped the others may follow.
func (c *canary) watch(ctx context.Context) (CanaryReport, error) {
	watch := cmp.Or(c.Watch, defaultWatch)
	over := time.NewTimer(watch)
	defer over.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	consumed := time.Now()

	c.watched = true
	c.tell(c.report())
	for {
		report := c.report()
		if c.failedTooOften(&report) || report.failed()+report.Unresolved <= c.Tolerate {
			return report, nil
		}

		select {
		case d, ok := <-c.notices:
			if !ok {
				report.Stopped = fmt.Sprintf("%s when the connection was lost", report)
				return report, errors.New("the connection that receives the canary's results was lost")
			}
			if c.note(d.Headers) {
				c.tell(c.report())
			}
		case <-tick.C:
			consumers, err := c.consumers()
			switch {
			case err != nil:
				report.Stopped = fmt.Sprintf("%s when the consumers of the target could not be counted", report)
				return report, err
			case consumers > 0:
				consumed = time.Now()
			case time.Since(consumed) > nobodyTime:
				report.Stopped = fmt.Sprintf("%s: queue %q has had no consumer for %s", report, c.target, nobodyTime)
				return report, nil
			}
		case <-over.C:
			report.Stopped = fmt.Sprintf("%s after %s", report, watch)
			if report.Unresolved > report.Retried {
				report.Stopped += fmt.Sprintf("; check that a service consumes %q with this library, under a policy "+
					"other than off, as a user with write permission on amq.default", c.target)
			}
			return report, nil
		case <-ctx.Done():
			report.Stopped = fmt.Sprintf("%s when it was interrupted", report)
			return report, context.Cause(ctx)
		}
	}
}

func (c *canary) tell(r CanaryReport) {
	if c.OnChange != nil {
		c.OnChange(r)
	}
}

// note takes in what it hears. It is false if that is no news.
func (c *canary) note(headers amqp091.Table) bool {
	n, ok := wire.ReadNotice(headers)
	if !ok || n.Run != c.run || n.Number > c.sent || c.last[n.Number].IsFinal() {
		return false
	}
	c.last[n.Number] = n.Outcome

	return true
}

func (c *canary) report() CanaryReport {
	r := CanaryReport{Sent: c.sent, Watched: c.watched}
	for _, outcome := range c.last {
		switch outcome {
		case wire.Handled:
			r.Handled++
		case wire.DeadLettered:
			r.DeadLettered++
		case wire.Dropped:
			r.Dropped++
		case wire.Retried, wire.Postponed:
			r.Retried++
		}
	}
	r.Unresolved = r.Sent - r.Handled - r.failed()

	return r
}

func (c *canary) failedTooOften(r *CanaryReport) bool {
	if r.failed() <= c.Tolerate {
		return false
	}
	r.Stopped = r.String()

	return true
}
