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

// Replay sends dead letters back to the queue that has failed them, where they begin a new life: at
// the first attempt, without deadline, with the history of before. They go straight to the queue,
// so that no other subscriber sees them again.
//
// It can be interrupted at any moment and run again: what was not replayed is where it was. Of what
// is on its way when the process is killed, up to 256 messages, some may then be both in the queue
// and among the dead letters.
//
// With a Canary, that many go first, and the others only when those were handled. Dead letters of
// the same run are never replayed again.
func (q *Queue) Replay(ctx context.Context, options ReplayOptions) (report ReplayReport, err error) {
	defer func() { err = explainLost("read", q.name, err) }()
	report.Run = rand.Text()
	target := cmp.Or(options.To, q.mainQueue)
	if err := options.validate(q, target); err != nil {
		return report, err
	}
	r, err := q.begin(ctx, target, options.DryRun)
	if err != nil {
		return report, err
	}
	defer r.end(q.client)
	r.target.handle = true

	p := &replay{queue: q, options: options, target: target, report: &report, began: time.Now()}
	report.Target = r.target
	if err := r.guard(ctx, p.drain(options.Limit), options.AllowDrop); err != nil {
		return report, err
	}
	if options.Canary.Messages == 0 || options.DryRun {
		report.Report, err = r.drain(ctx, p.drain(options.Limit))
		return report, err
	}

	if follow, err := p.sendCanary(ctx, r); !follow {
		return report, err
	}
	canaries, left := report.Report, 0
	if options.Limit > 0 {
		left = options.Limit - canaries.Done
	}
	rest := p.drain(left)
	rest.progress = func(progress Progress) { tell(options.Progress, canaries.and(progress)) }
	rest.settled = func(r Report, err error) {
		p.settled(r.after(canaries), err)
	}
	report.Report, err = r.drain(ctx, rest)
	report.Report = report.after(canaries)

	return report, err
}

// sendCanary tells whether the others are to follow.
func (p *replay) sendCanary(ctx context.Context, r *run) (follow bool, err error) {
	options, report := p.options, p.report
	if p.canary, err = r.listen(options.Canary, p.queue, report.Run, p.target); err != nil {
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

	first := options.Canary.Messages
	if options.Limit > 0 {
		first = min(first, options.Limit)
	}
	canaries, follows := p.drain(first), false
	canaries.settled = func(r Report, err error) {
		follows = err == nil && r.Done >= options.Canary.Messages && r.Done != options.Limit && r.Seen != r.Total
		if report.Canary = p.canary.report(); !follows {
			p.settled(r, err)
		}
	}
	if report.Report, err = r.drain(ctx, canaries); err != nil || !follows {
		return false, err
	}
	report.Canary, err = p.canary.watch(ctx)
	p.canary = nil

	return err == nil && report.Canary.Stopped == "", err
}

// after is the report of those that followed the canaries, with these.
func (r Report) after(canaries Report) Report {
	r.Progress, r.Bytes = canaries.and(r.Progress), r.Bytes+canaries.Bytes
	return r
}

// and adds what came after the canary, whose run has seen the queue once already.
func (r Report) and(p Progress) Progress {
	p.Total, p.Seen, p.Matched, p.Done = p.Total+r.Done, p.Seen+r.Done, p.Matched+r.Done, p.Done+r.Done

	return p
}

// replay is one call of Replay.
type replay struct {
	queue   *Queue
	options ReplayOptions
	target  string
	report  *ReplayReport
	began   time.Time
	canary  *canary // nil while the others go
}

func (p *replay) drain(limit int) *drain {
	o := p.options

	return &drain{
		queue: p.queue, filter: o.Filter, limit: limit, rate: o.Rate, dryRun: o.DryRun, undo: o.Undo,
		progress: o.Progress, settled: p.settled,
		taken: Taken{By: "replay", To: p.target, Run: p.report.Run, At: p.began}, target: p.target, copyOf: p.copyOf,
		passes: p.passes,
	}
}

func (p *replay) settled(r Report, err error) {
	if p.options.Settled != nil {
		whole := *p.report
		whole.Report = r
		p.options.Settled(whole, err)
	}
}

// passes tells of those that this run has replayed: they have come back.
func (p *replay) passes(f *found) bool {
	run, _ := f.delivery.Headers[header.Replay].(string)
	return run == p.report.Run
}

func (p *replay) copyOf(f *found, frame int) (amqp091.Publishing, LeftReason) {
	q := p.queue
	if !wire.Carries(f.delivery.Headers, q.mainQueue) && f.deadLetter().Queue != q.mainQueue && !p.options.Foreign {
		return amqp091.Publishing{}, LeftForeign
	}
	d, history := f.delivery, ""
	history, _ = d.Headers[header.Edits].(string)
	if p.options.Edit != nil {
		edited, what, err := p.edit(f)
		if err != nil {
			if p.report.EditError == nil {
				p.report.EditError = err
			}
			return amqp091.Publishing{}, LeftEdit
		}
		if what != nil {
			d, history = edited, appendEdit(history, *what)
		}
	}

	r := codec.Replay{MainQueue: q.mainQueue, Target: p.target, Run: p.report.Run, Edits: history}
	if p.canary != nil {
		r.Canary = p.canary.next()
	}
	message, left := fitting(codec.ReplayOf(&d, r, frame))
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
func (p *replay) edit(f *found) (d amqp091.Delivery, what *Edit, err error) {
	d = f.delivery
	before := f.deadLetter().Message
	before.Headers = wire.Strip(before.Headers, true)
	after := before
	after.Headers = codec.CloneTable(before.Headers) // what is written to the undo file must not change
	after.Body = bytes.Clone(before.Body)
	if err := p.options.Edit(&after); err != nil {
		return d, nil, err
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
func (p *replay) by() string {
	if p.options.By != "" {
		return p.options.By
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

func (o ReplayOptions) validate(q *Queue, target string) error {
	errs := []error{o.Filter.Validate(), checkRun("ReplayOptions", o.Limit, o.Rate)}
	if target == "" {
		errs = append(errs, &config.FieldError{Path: "ReplayOptions.To", Wanted: "a queue, as the dead-letter queue " +
			"has no main queue", Found: quoted(target)})
	}
	if target == q.name {
		errs = append(errs, &config.FieldError{Path: "ReplayOptions.To", Wanted: "another queue than the dead-letter " +
			"queue itself", Found: quoted(target)})
	}
	if o.Canary.Messages < 0 {
		errs = append(errs, &config.FieldError{Path: "ReplayOptions.Canary.Messages", Wanted: "0 (none) or more",
			Found: itoa(o.Canary.Messages)})
	}
	if o.Canary.Watch < 0 {
		errs = append(errs, &config.FieldError{Path: "ReplayOptions.Canary.Watch", Wanted: "0 (15 minutes) or more",
			Found: o.Canary.Watch.String()})
	}
	if o.Canary.Tolerate < 0 || o.Canary.Messages > 0 && o.Canary.Tolerate >= o.Canary.Messages {
		errs = append(errs, &config.FieldError{Path: "ReplayOptions.Canary.Tolerate",
			Wanted: fmt.Sprintf("0 or more, and fewer than Canary.Messages (%d)", o.Canary.Messages),
			Found:  itoa(o.Canary.Tolerate)})
	}

	return errors.Join(errs...)
}
