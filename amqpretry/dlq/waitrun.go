package dlq

import (
	"context"
	"crypto/rand"
	"hash/maphash"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// waitRun does a plan with one of the queues in which messages wait.
type waitRun struct {
	*Waits
	queue *Queue
	plan  Plan
	*madeCopies
	others int // messages for other targets
}

// madeCopies are what a run has sent, which it may see again.
type madeCopies struct {
	ids map[string]bool // of copies that wait again
	// counts are the attempts of messages that were sent: those that fail again, and wait in
	// another queue, are not sent twice.
	counts map[uint64]string
}

func (r *waitRun) run(ctx context.Context, limit int, dryRun bool) (report Report, err error) {
	defer func() { err = explainLost("read", r.queue.name, err) }()
	report.Left = []Left{}
	run, err := r.queue.begin(ctx, "", dryRun)
	if err != nil {
		return report, err
	}
	defer run.end(r.client)
	d := &drain{queue: r.queue, filter: r.plan.Filter, limit: limit, rate: r.plan.Rate, dryRun: dryRun,
		undo: r.plan.Undo, progress: r.plan.Progress, passes: r.passes,
		taken: Taken{By: string(r.plan.Kind), At: time.Now()}}
	switch r.plan.Kind {
	case SendNow:
		d.copyOf, d.reject, d.target = r.sendNow, true, r.target.String()
		if r.queue.place.ladder != nil {
			d.reject, d.target = false, r.client.config.Names.Landing(r.target)
		}
	case Postpone:
		if err := r.postpone(d); err != nil {
			return report, err
		}
	}

	report, err = run.drain(ctx, d)
	report.Total, report.Seen = report.Total-r.others, report.Seen-r.others

	return report, err
}

// passes tells messages of other targets, and what this run has sent.
func (r *waitRun) passes(f *found) bool {
	if !r.queue.place.serves(f.delivery.RoutingKey) {
		r.others++
		return true
	}
	id, _ := f.delivery.Headers[header.ID].(string)
	key, attempts := attemptsOf(f)
	sent, known := r.counts[key]

	return r.ids[id] || known && sent != attempts
}

// attemptsOf is the identity of a message, with how often it was handled.
func attemptsOf(f *found) (key uint64, attempts string) {
	attempts, _ = f.delivery.Headers[header.Attempts].(string)

	return maphash.String(seed, codec.Identity(f.delivery.Headers, f.delivery.MessageId)), attempts
}

// sendNow makes the copy for a landing queue. It tells no end of a wait, so that the service that
// remembers it does not take it for one that came too early.
func (r *waitRun) sendNow(f *found, limit int) (amqp091.Publishing, LeftReason) {
	if r.byBroker(f) {
		return amqp091.Publishing{}, LeftByBroker
	}
	key, attempts := attemptsOf(f)
	r.counts[key] = attempts
	message, left := fitting(again(f, limit))
	delete(message.Headers, header.Due)
	delete(message.Headers, header.NotBefore)

	return message, left
}

// byBroker tells of a message that the strategy cycle has brought here: its attempts are in its
// x-death.
func (r *waitRun) byBroker(f *found) bool {
	return r.queue.place.ladder == nil && codec.HasDied(f.delivery.Headers)
}

// again makes a copy that is another publish of the message.
func again(f *found, limit int) (message amqp091.Publishing, fits bool) {
	message, fits = codec.AsTaken(&f.delivery, limit)
	if message.Headers == nil {
		message.Headers = amqp091.Table{}
	}
	message.Headers[header.ID] = rand.Text()

	return message, fits
}

// postpone prepares a drain that sends messages to wait again: in the ladder in which they are, or
// as the policy says.
func (r *waitRun) postpone(d *drain) error {
	var plan topology.Plan
	if ladder := r.queue.place.ladder; ladder != nil {
		plan.Ladder = ladder
		d.target = ladder.Name()
	} else {
		var err error
		if plan, err = topology.New(r.target.Key, r.policy, r.client.config.Names); err != nil {
			return err
		}
		d.target = plan.RetryExchange
	}
	d.copyOf = func(f *found, limit int) (amqp091.Publishing, LeftReason) { return r.postponed(f, limit, plan) }
	d.route = func(f *found, m *amqp091.Publishing) (exchange, key string) {
		id, _ := m.Headers[header.ID].(string)
		r.ids[id] = true
		if plan.Ladder == nil {
			return plan.RetryExchange, plan.Queue
		}
		if m.Priority > header.MaxWaitingPriority {
			m.Headers[header.Priority] = itoa(int(m.Priority))
		}

		return plan.Ladder.Address(r.target, time.Until(r.plan.Until), m)
	}

	return nil
}

// postponed makes the copy that waits longer. In retry queues it waits as often as it takes: the
// service sends it to wait again until then.
func (r *waitRun) postponed(f *found, limit int, plan topology.Plan) (amqp091.Publishing, LeftReason) {
	until, now := r.plan.Until.Truncate(time.Millisecond), time.Now() // as headers tell it
	read := func(key string) time.Time {
		text, _ := f.delivery.Headers[key].(string)
		return wire.ParseTime(text)
	}
	deadline, last := read(header.Deadline), read(header.LastFailure)
	if since := read(header.Since); since.After(last) {
		last = since
	}
	left, wait := LeftReason(""), until.Sub(now)
	switch {
	case r.byBroker(f):
		left = LeftByBroker
	case !f.deadLetter().Wait.End().Before(until):
		left = LeftLater
	case !deadline.IsZero() && until.After(deadline):
		left = LeftExpires
	case plan.Ladder != nil && wait > plan.Ladder.Config.Longest():
		left = LeftTooLong
	case plan.Ladder == nil && !wire.Carries(f.delivery.Headers, r.target.Key):
		left = LeftForeign
	case plan.Ladder == nil && until.After(last.Add(r.policy.MaxPostpone)):
		left = LeftTooLong
	}
	if left != "" {
		return amqp091.Publishing{}, left
	}

	message, left := fitting(again(f, limit))
	headers := message.Headers
	if plan.Ladder != nil {
		delete(headers, header.NotBefore)
		headers[header.Due] = wire.FormatTime(now.Add(plan.Ladder.Config.RoundUp(wait)))
	} else {
		hop := engine.Hop(&r.policy, wait)
		headers[header.Delay], headers[header.Due] = config.FormatDelay(hop), wire.FormatTime(now.Add(hop))
		headers[header.NotBefore] = wire.FormatTime(until)
	}

	return message, left
}
