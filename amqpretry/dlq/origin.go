package dlq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

// Origin is a queue that dead letters name as the one in which they failed, in a replay with
// Plan.ToOrigin.
type Origin struct {
	// Queue is its name, Messages how many go there; in a dry run, how many can.
	Queue    string `json:"queue"`
	Messages int    `json:"messages"`
	// Target is what is known of the queue. Nil if no message can go there: Problem says why.
	Target  *Target `json:"target,omitempty"`
	Problem string  `json:"problem,omitempty"`

	bytes int64
}

// mostOrigins bounds the questions to the broker: whoever can publish can make up origins.
const mostOrigins = 100

// LeftReasons of a replay with Plan.ToOrigin.
const (
	// LeftNoOrigin: no header tells where it failed.
	LeftNoOrigin LeftReason = "origin unknown"
	// LeftNoTarget: it cannot go to its origin, as that is gone, or is no queue for replays. See
	// Origin.Problem.
	LeftNoTarget LeftReason = "origin cannot be a target"
	// LeftUnasked: there are 100 other origins before its own. Plan.Origins chooses.
	LeftUnasked LeftReason = "further origin"
	// LeftNotChosen: its origin is not among Plan.Origins.
	LeftNotChosen LeftReason = "origin not chosen"
)

// checkOrigins checks what only a replay to origins has.
func (p Plan) checkOrigins(check func(ok bool, field, wanted, found string)) {
	check(!p.ToOrigin || p.Kind == Replay && p.To == "" && p.Messages == 0 && !p.Foreign, "ToOrigin",
		"only in a replay, and without To, Canary and Foreign", "true")
	check(len(p.Origins) == 0 || p.ToOrigin, "Origins", "empty without ToOrigin", fmt.Sprintf("%q", p.Origins))
}

// checkChosen refuses a run that would take its targets from headers.
func (p *passage) checkChosen() error {
	if p.dryRun || !p.plan.ToOrigin || len(p.plan.Origins) > 0 {
		return nil
	}

	return &config.FieldError{Path: "Plan.Origins", Wanted: "the queues to which messages may go: headers only " +
		"choose among these", Found: "none"}
}

// origin returns the origin of a message, or why it cannot go there.
func (p *passage) origin(f *found) (o *Origin, left LeftReason) {
	queue := codec.Origin(&f.delivery)
	i := slices.IndexFunc(p.origins, func(o *Origin) bool { return o.Queue == queue })
	switch {
	case queue == "":
		return nil, LeftNoOrigin
	case i < 0 && len(p.plan.Origins) > 0:
		return nil, LeftNotChosen
	case i < 0 && len(p.origins) >= mostOrigins:
		return nil, LeftUnasked
	case i < 0:
		i, p.origins = len(p.origins), append(p.origins, p.ask(queue))
	}
	if o = p.origins[i]; o.Problem != "" {
		left = LeftNoTarget
	}

	return o, left
}

// ask asks for a queue to which a replay may go.
func (q *Queue) ask(ctx context.Context, link *connection.Link, queue string) *Origin {
	o := &Origin{Queue: queue, Problem: q.noTarget(queue)}
	if o.Problem != "" {
		return o
	}
	var err error
	switch o.Target, err = q.client.target(ctx, link, queue); {
	case errors.As(err, new(*NoQueueError)):
		o.Problem = "does not exist"
	case err != nil:
		o.Problem = err.Error()
	default:
		o.Target.handle = true
	}

	return o
}

// noTarget says why a queue cannot be the target of a replay, by its name; empty if it can.
func (q *Queue) noTarget(queue string) string {
	const mark = "\x00"
	before, after, has := strings.Cut(q.client.config.Names.Landing(topology.Target{Key: mark}), mark)
	switch {
	case queue == q.name:
		return "is the dead-letter queue itself"
	case strings.HasPrefix(queue, "amq."):
		return "has a name of the broker's own"
	case q.checkReturns("", queue) != nil, has && before+after != "" && strings.HasPrefix(queue, before) &&
		strings.HasSuffix(queue, after):
		return "is a retry queue or a landing queue"
	default:
		return ""
	}
}

// goes counts a message that goes to an origin, or can.
func (o *Origin) goes(body []byte) {
	o.Messages++
	o.bytes += int64(len(body))
}

// originReport are the origins, the one with the most messages first.
func (p *passage) originReport() []Origin {
	var all []Origin
	for _, o := range p.origins {
		all = append(all, *o)
	}
	slices.SortStableFunc(all, func(a, b Origin) int { return b.Messages - a.Messages })

	return all
}

// missing is how many of the messages that were sent are not in their target any more.
func (p *passage) missing(r *run, done int) (n int) {
	n = r.target.missing(r.asker, done)
	for _, o := range p.origins {
		n += o.Target.missing(r.asker, o.Messages)
	}

	return n
}

// checkDrops returns a *[DropError] if an origin would lose some of the messages.
func checkDrops(origins []Origin) error {
	var errs []error
	for _, o := range origins {
		if o.Target != nil {
			errs = append(errs, o.Target.Check(o.Messages, o.bytes))
		}
	}

	return errors.Join(errs...)
}
