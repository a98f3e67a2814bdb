package dlq

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// run does a plan, or counts what it would do.
func (q *Queue) run(ctx context.Context, plan Plan, dryRun bool) (_ Report, err error) {
	defer func() { err = explainLost("read", q.name, err) }()
	p, r, err := q.pass(ctx, plan, dryRun)
	if err != nil {
		return p.report, err
	}
	defer r.end(q.client)
	if err := r.guard(ctx, p); err != nil {
		return p.report, err
	}

	limit := plan.limit()
	if plan.Messages == 0 || dryRun {
		report, err := r.drain(ctx, p.drain(limit))
		return p.whole(report, err), err
	}
	if follow, err := p.sendCanary(ctx, r); !follow {
		return p.whole(p.report, err), err
	}
	canaries, left := p.report, 0
	p.report.EditErrors = nil // the others include those that were left
	if limit > 0 {
		left = limit - canaries.Done
	}
	rest := p.drain(left)
	rest.progress = func(progress Progress) { tell(plan.Progress, canaries.and(progress)) }
	rest.settled = func(r Report, err error) { p.settled(r.after(canaries), err) }
	report, err := r.drain(ctx, rest)

	return p.whole(report.after(canaries), err), err
}

// pass begins a pass through the queue: it checks the plan, and connects. After an error only the
// report of the passage is of use.
func (q *Queue) pass(ctx context.Context, plan Plan, dryRun bool) (*passage, *run, error) {
	p := &passage{queue: q, plan: plan.parking(), dryRun: dryRun, began: time.Now(), report: Report{Left: []Left{}}}
	if plan.Kind == Replay {
		p.report.Run = rand.Text()
	}
	if (plan.Kind == Replay || plan.Kind == Move) && !plan.ToOrigin {
		p.target = cmp.Or(plan.To, q.mainQueue)
	}
	if err := errors.Join(plan.Validate(), p.checkTarget(), p.checkChosen()); err != nil {
		return p, nil, err
	}
	r, err := q.begin(ctx, p.target, dryRun)
	if err != nil {
		return p, nil, err
	}
	p.ask = func(queue string) *Origin { return q.ask(ctx, r.link, queue) }
	for _, queue := range plan.Origins {
		p.origins = append(p.origins, p.ask(queue))
	}
	if plan.Kind.marks() { // which the messages do not leave
		p.target = q.name
	}
	if p.report.Target = r.target; r.target != nil {
		r.target.handle = plan.Kind == Replay
	}

	return p, r, nil
}

// checkTarget checks the target by the names of the queues.
func (p *passage) checkTarget() error {
	switch {
	case p.plan.Kind.forWaits():
		return &config.FieldError{Path: "Plan.Kind", Wanted: "replay, move or purge, as these are dead letters",
			Found: quoted(string(p.plan.Kind))}
	case p.plan.ToOrigin:
		return nil
	case p.plan.Kind == Replay && p.target == "":
		return &config.FieldError{Path: "Plan.To", Wanted: "a queue, as the dead-letter queue has no main queue",
			Found: quoted(p.target)}
	case p.target == p.queue.name:
		return &config.FieldError{Path: "Plan.To", Wanted: "another queue than the dead-letter queue itself",
			Found: quoted(p.target)}
	case p.target != p.queue.mainQueue:
		return p.queue.checkReturns("Plan.To", p.target)
	default:
		return nil
	}
}

// checkReturns refuses a target from which messages would go on to a main queue, after a delay.
func (q *Queue) checkReturns(field, target string) error {
	if !q.client.config.Names.Returns(target, q.mainQueue) {
		return nil
	}

	return &config.FieldError{Path: field, Wanted: "another queue than a retry queue or landing queue, from which " +
		"messages go to a main queue", Found: quoted(target)}
}

// sendCanary tells whether the others are to follow.
func (p *passage) sendCanary(ctx context.Context, r *run) (follow bool, err error) {
	report, limit := &p.report, p.plan.limit()
	if p.canary, err = r.listen(p.plan.Canary, p.queue, report.Run, p.target); err != nil {
		return false, err
	}
	consumers, err := p.canary.consumers()
	if err != nil {
		return false, err
	}
	if consumers == 0 {
		report.Canary.Stopped = fmt.Sprintf("queue %q has no consumer to handle the canary", p.target)
		return false, nil
	}

	first := p.plan.Messages
	if limit > 0 {
		first = min(first, limit)
	}
	canaries, follows := p.drain(first), false
	canaries.settled = func(r Report, err error) {
		follows = err == nil && r.Done >= p.plan.Messages && r.Done != limit && r.Seen != r.Total
		if report.Canary = p.canary.report(); !follows {
			p.settled(r, err)
		}
	}
	sent, err := r.drain(ctx, canaries)
	if *report = p.whole(sent, err); err != nil || !follows {
		return false, err
	}
	report.Canary, err = p.canary.watch(ctx)
	p.canary = nil

	return err == nil && report.Canary.Stopped == "", err
}

// passage is one call of Run, or of Plan.
type passage struct {
	queue  *Queue
	plan   Plan
	dryRun bool
	target string // empty if they are deleted
	report Report
	began  time.Time
	canary *canary // nil while the others go

	origins []*Origin // so far, in a replay to them
	ask     func(queue string) *Origin
}

func (p *passage) drain(limit int) *drain {
	o := p.plan
	d := &drain{
		queue: p.queue, filter: o.Filter, limit: limit, rate: o.Rate, dryRun: p.dryRun, undo: o.Undo,
		progress: o.Progress, settled: p.settled, target: p.target,
		holds: o.Rate == 0 && o.Edit == nil, // which may take its time
		taken: Taken{By: string(o.Kind), To: p.target, Run: p.report.Run, At: p.began}, missing: p.missing,
	}
	switch o.Kind {
	case Replay:
		d.copyOf, d.passes = p.copyOf, p.passes
	case Park, Unpark:
		note := p.mark()
		d.copyOf = p.marked(note)
		d.passes = func(f *found) bool { return f.delivery.Headers[header.Parked] == note }
	case Move:
		d.copyOf = func(f *found, frame int) (amqp091.Publishing, LeftReason) {
			return fitting(codec.MovedOf(&f.delivery, p.queue.mainQueue, frame))
		}
	}

	return d
}

// whole is a report with what is known of the whole run.
func (p *passage) whole(r Report, err error) Report {
	r.Run, r.Canary, r.Origins = p.report.Run, p.report.Canary, p.originReport()
	r.Edited, r.EditError, r.EditErrors = p.report.Edited, p.report.EditError, p.report.EditErrors
	if r.Target != nil || len(r.Origins) > 0 {
		r.weigh(p.plan.Limit)
	}

	return p.plan.asCounted(r, err)
}

func (p *passage) settled(r Report, err error) {
	p.logMarked(r)
	if p.plan.Settled != nil {
		p.plan.Settled(p.whole(r, err), err)
	}
}

// passes tells of those that this run has replayed: they have come back.
func (p *passage) passes(f *found) bool {
	run, _ := f.delivery.Headers[header.Replay].(string)
	return run == p.report.Run
}

func (p *passage) copyOf(f *found, frame int) (amqp091.Publishing, LeftReason) {
	q := p.queue
	if p.leavesParked(f) {
		return amqp091.Publishing{}, LeftParked
	}
	target := p.target
	if p.plan.ToOrigin {
		origin, left := p.origin(f)
		if left != "" {
			return amqp091.Publishing{}, left
		}
		target, f.origin = origin.Queue, origin
	} else if !p.plan.Foreign && !wire.Carries(f.delivery.Headers, q.mainQueue) {
		if origin := f.deadLetter().Queue; origin != q.mainQueue && origin != p.target {
			return amqp091.Publishing{}, LeftForeign
		}
	}
	d, history, changed := f.delivery, "", false
	history, _ = d.Headers[header.Edits].(string)
	if p.plan.Edit != nil || p.plan.Change != nil {
		edited, what, err := p.edit(f)
		if err != nil {
			p.report.refuse(f.deadLetter(), err)
			return amqp091.Publishing{}, LeftEdit
		}
		if what != nil {
			d, history, changed = edited, appendEdit(history, *what), true
		}
	}

	r := codec.Replay{MainQueue: q.mainQueue, Target: target, Run: p.report.Run, Edits: history}
	if p.canary != nil {
		r.Canary = p.canary.next()
	}
	message, left := fitting(codec.ReplayOf(&d, r, frame))
	if changed && left == "" {
		p.report.Edited++
	}
	if f.origin != nil && left == "" {
		f.origin.goes(message.Body)
	}
	if p.canary == nil {
		return message, left
	}
	if left == "" && message.Headers[header.Canary] == nil {
		left = LeftTooLarge // to be a canary: it may follow
	}
	if left != "" {
		p.canary.unsent()
	}

	return message, left
}

// edit gives the delivery as it is after the edit, and what that was; nil if nothing has changed.
func (p *passage) edit(f *found) (d amqp091.Delivery, what *Edit, err error) {
	d = f.delivery
	before := f.deadLetter().Message
	before.Headers = wire.Strip(before.Headers, true)
	after := before
	after.Headers = codec.CloneTable(before.Headers) // what is written to the undo file must not change
	after.Body = bytes.Clone(before.Body)
	if p.plan.Edit != nil {
		if err := p.plan.Edit(&after); err != nil {
			return d, nil, err
		}
	}
	if p.plan.Change != nil {
		if err := p.plan.Change.apply(&after); err != nil {
			return d, nil, err
		}
	}
	if err := after.Headers.Validate(); err != nil {
		return d, nil, err
	}
	edit, changed := changes(before, after, time.Now(), p.by())
	if !changed {
		return d, nil, nil
	}

	headers := wire.Strip(after.Headers, true)
	for key, value := range d.Headers {
		if header.IsOwn(key) || header.IsBroker(key) {
			headers[key] = value
		}
	}
	d.Headers, d.Body = headers, after.Body
	d.ContentType, d.ContentEncoding, d.DeliveryMode, d.Priority = after.ContentType, after.ContentEncoding,
		after.DeliveryMode, after.Priority
	d.CorrelationId, d.ReplyTo, d.MessageId, d.Timestamp = after.CorrelationId, after.ReplyTo, after.MessageId,
		after.Timestamp
	d.Type, d.AppId = after.Type, after.AppId

	return d, &edit, nil
}

// by is who edits: user@host.
func (p *passage) by() string {
	if p.plan.By != "" {
		return p.plan.By
	}
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}

	return name + "@" + host
}
