package dlq

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Wait is what is known of the wait of a message, which is in a retry queue or in a ladder.
type Wait struct {
	// Queue is the one in which it waits, Target where it goes then.
	Queue  string          `json:"queue"`
	Target topology.Target `json:"target"`
	// Due is when this wait ends, by the clock of who sent the message. NotBefore is when it is to
	// be handled, if it has to wait again after that; else it is zero.
	Due       time.Time `json:"due"`
	NotBefore time.Time `json:"not_before,omitzero"`
	// DueBy says how Due is known.
	DueBy DueBy `json:"due_by"`

	release time.Time // when this queue hands it on; zero if that is unknown
}

// DueBy says how it is known when a wait ends.
type DueBy string

const (
	// DueTold says that the sender has written it.
	DueTold DueBy = "told"
	// DueEstimated is the time of the last failure, or of the last dead-lettering, with the delay.
	// An older version has sent the message, or the broker delays it by itself.
	DueEstimated DueBy = "estimated"
	// DueAtMost is the latest possible time, as the message tells none.
	DueAtMost DueBy = "at most"
)

// End is when the message is to be handled: the later of Due and NotBefore.
func (w *Wait) End() time.Time {
	if w.NotBefore.After(w.Due) {
		return w.NotBefore
	}

	return w.Due
}

// Waits are the messages that wait for one target: a main queue, or an exchange to which messages
// are published with a delay. They wait in retry queues and in ladders.
//
// While somebody reads a queue, its messages cannot go on. So each message goes back when it is
// due, and all others when the queue was read. Their order and the ends of their waits stay. A
// message is late by some 0.05 s and by the difference of the clocks of sender and reader, and by
// no more than the time that reading its queue takes. Those that do not tell when they are due (see
// DueAtMost) go back only then. If the reading process dies, the broker requeues what it held, and
// in a queue with more than 1000 messages the order can change. Then a message can wait behind
// another one for up to the delay of the queue.
type Waits struct {
	client  *Client
	target  topology.Target
	policy  config.Policy
	ladders []topology.Ladder
}

// Waits returns the messages that wait for a target. It does not ask the broker. policy is that of
// the target; it names the retry queues, and the ladder of exact delays. ladders are further ones
// in which messages may wait. The two default ladders are always among them.
//
// With Config.Management, the retry queues of delays that the policy no longer has are found too.
func (c *Client) Waits(target topology.Target, policy config.Policy, ladders ...topology.Ladder) (*Waits, error) {
	w := &Waits{client: c, target: target, policy: policy.WithDefaults()}
	if target == (topology.Target{}) {
		return nil, &config.FieldError{Path: "Target", Wanted: "a queue or an exchange", Found: "nothing"}
	}
	if err := policy.Validate(); err != nil {
		return nil, err
	}
	all := []config.Ladder{config.RetryLadder(), config.ScheduleLadder()}
	if w.policy.Strategy == config.StrategyLadder {
		all = append(all, w.policy.Ladder)
	}
	for _, l := range all {
		ladder, err := topology.NewLadder(l)
		if err != nil {
			return nil, err
		}
		ladders = append(ladders, ladder)
	}
	for _, l := range ladders {
		if !slices.ContainsFunc(w.ladders, func(o topology.Ladder) bool { return o.Name() == l.Name() }) {
			w.ladders = append(w.ladders, l)
		}
	}

	return w, nil
}

// Name says what it is about, such as "waits of orders".
func (w *Waits) Name() string { return "waits of " + w.target.String() }

// MainQueue is the target if that is a queue, else empty.
func (w *Waits) MainQueue() string {
	if w.target.Exchange != "" {
		return ""
	}

	return w.target.Key
}

// Target is the one that the messages wait for.
func (w *Waits) Target() topology.Target { return w.target }

// Browse gives the messages that match, queue by queue, those with the longest waits first, and
// leaves all where they are. Position is the place in the queue that Wait names. It ends as
// Queue.Browse does.
func (w *Waits) Browse(ctx context.Context, filter Filter) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		queues, err := w.Queues(ctx)
		if err != nil {
			yield(DeadLetter{}, explainWait(err))
			return
		}
		seen := map[uint64]bool{}
		for _, q := range queues {
			if q.Ready == 0 {
				continue
			}
			of := w.queue(q)
			matches := filter
			matches.Where = func(l *DeadLetter) bool {
				return of.place.serves(l.CameBy.RoutingKey) && (filter.Where == nil || filter.Where(l))
			}
			for l, err := range of.Browse(ctx, matches) {
				if isMissing(err) {
					continue
				}
				if err == nil && of.place.ladder != nil {
					id := waitIdentity(l.Message.Headers, l.Message.MessageId, l.CameBy.RoutingKey, l.Message.Body)
					if seen[id] { // it has come to a lower level meanwhile
						continue
					}
					seen[id] = true
				}
				if !yield(l, explainWait(err)) {
					return
				}
			}
		}
	}
}

// isMissing tells that a queue was deleted since it was found.
func isMissing(err error) bool {
	missing := (*NoQueueError)(nil)

	return errors.As(err, &missing) && missing.What != "target"
}

// Soonest gives the messages that match and end their waits first, at most limit of them in that
// order, and how many match. A limit of 0 means all.
func (w *Waits) Soonest(ctx context.Context, filter Filter, limit int) (soonest []DeadLetter, matched int, err error) {
	cut := func() {
		slices.SortStableFunc(soonest, func(a, b DeadLetter) int { return a.Wait.End().Compare(b.Wait.End()) })
		if limit > 0 && len(soonest) > limit {
			clear(soonest[limit:])
			soonest = soonest[:limit]
		}
	}
	for l, err := range w.Browse(ctx, filter) {
		if err != nil {
			cut()
			return soonest, matched, err
		}
		matched++
		if soonest = append(soonest, l); limit > 0 && len(soonest) >= 2*limit+1000 {
			cut()
		}
	}
	cut()

	return soonest, matched, nil
}

// Plan counts what a plan would do, as Queue.Plan does. Its Kind is Cancel, SendNow or Postpone.
func (w *Waits) Plan(ctx context.Context, plan Plan) (Plan, error) {
	return count(plan, func(dry Plan) (Report, error) { return w.run(ctx, dry, true) })
}

// Run does what a plan says, as Queue.Run does. Report.Gone counts those that no longer waited.
func (w *Waits) Run(ctx context.Context, plan Plan) (Report, error) { return w.run(ctx, plan, false) }

func (w *Waits) run(ctx context.Context, plan Plan, dryRun bool) (all Report, err error) {
	defer func() { err = explainWait(err) }()
	all.Left = []Left{}
	if err := errors.Join(plan.Validate(), plan.checkWaits()); err != nil {
		return all, err
	}
	queues, err := w.Queues(ctx)
	if err != nil {
		return all, err
	}
	settled, progress := plan.Settled, plan.Progress
	plan.Settled = nil
	limit, before := plan.limit(), Report{}
	if plan.Progress != nil {
		plan.Progress = func(p Progress) { tell(progress, before.with(Report{Progress: p}).Progress) }
	}
	made := &madeCopies{map[string]bool{}, map[uint64]string{}}
	for _, q := range queues {
		if q.Ready == 0 {
			continue
		}
		if limit > 0 && before.Done >= limit && !dryRun {
			break
		}
		run := &waitRun{Waits: w, queue: w.queue(q), plan: plan, madeCopies: made}
		report, failed := run.run(ctx, max(0, limit-before.Done), dryRun)
		before = before.with(report)
		if failed != nil && !isMissing(failed) {
			err = failed
			break
		}
	}
	all = before
	if c := plan.Counted; c != nil && err == nil && (limit == 0 || all.Done < limit) {
		all.Gone = max(0, c.Matched-all.Matched)
	}
	if settled != nil {
		settled(all, err)
	}

	return all, err
}

// Import lets the messages of an undo file wait again: each in the queue from which it was taken,
// as long as that queue and the levels below it make it wait. OnlyMissing and To do not apply.
func (w *Waits) Import(ctx context.Context, r io.Reader, options ImportOptions) (report Report, err error) {
	defer func() { err = explainWait(explainLost("import into", w.Name(), err)) }()
	if err := options.validate(); err != nil {
		return Report{Left: []Left{}}, err
	}
	queues, err := w.Queues(ctx)
	if err != nil {
		return Report{Left: []Left{}}, err
	}
	connection := w.client.connect("import")
	defer w.client.disconnect(connection)
	link, err := connection.TryLink(ctx)
	if err != nil {
		return Report{Left: []Left{}}, err
	}
	i := &importer{queue: w.client.DeadLetterQueue(w.Name(), w.MainQueue()), target: w.target.String(), asTaken: true,
		options: options, places: map[string]*place{}}
	i.options.Elsewhere = nil
	for _, q := range queues {
		i.places[q.Name] = q.place
	}

	return i.importAll(ctx, r, link)
}

// with adds the report of the next queue.
func (r Report) with(o Report) Report {
	left := r.Left
	o.Progress = Progress{r.Total + o.Total, r.Seen + o.Seen, r.Matched + o.Matched, r.Done + o.Done}
	r.Progress, r.Bytes, r.Left = o.Progress, r.Bytes+o.Bytes, o.Left
	for _, l := range left {
		for range l.Messages {
			r.leave(l.Why)
		}
	}
	r.Unsettled, r.Refused, r.Consumers = r.Unsettled+o.Unsettled, r.Refused+o.Refused, r.Consumers+o.Consumers
	r.UntimedLeftOut += o.UntimedLeftOut

	return r
}

// checkWaits checks what a plan says of messages that wait.
func (p Plan) checkWaits() error {
	if p.Kind.forWaits() {
		return nil
	}

	return &config.FieldError{Path: "Plan.Kind", Wanted: "cancel, send or postpone", Found: quoted(string(p.Kind))}
}

// waitError is an error of the code for dead letters, about a queue in which messages wait.
type waitError struct{ error }

func explainWait(err error) error {
	if err == nil {
		return nil
	}

	return waitError{err}
}

func (e waitError) Error() string {
	return strings.NewReplacer(
		"a dead-letter queue", "a retry queue or wait queue",
		"dead-letter queue", "retry queue or wait queue",
		"replay, move, purge or browse", "list, cancel, send or postpone",
		"(replay, move, import)", "(send, postpone)",
	).Replace(e.error.Error())
}

func (e waitError) Unwrap() error { return e.error }

// places are the retry queues of the policy, without asking the broker.
func (w *Waits) places() (all []*place, err error) {
	if w.target.Exchange != "" || w.policy.Mode != config.ModeRetry || w.policy.Strategy == config.StrategyLadder ||
		w.policy.Strategy == config.StrategyNative || w.policy.Strategy == config.StrategyRedelivery {
		return nil, nil
	}
	plan, err := topology.New(w.target.Key, w.policy, w.client.config.Names)
	if err != nil {
		return nil, err
	}
	for _, q := range plan.Queues {
		if q.Delay > 0 {
			all = append(all, &place{target: w.target, queue: q.Name, ttl: q.Delay, exchange: plan.RetryExchange,
				shared: q.Shared, arguments: q.Arguments})
		}
	}

	return all, nil
}

// ladder are the wait queues of a ladder, the highest level first.
func (w *Waits) ladder(l topology.Ladder) (all []*place) {
	queues, c := l.Shared().Queues, l.Config.WithDefaults()
	for level := range c.Levels {
		for digit := 1; digit < c.Radix; digit++ {
			name := l.WaitQueue(level, digit)
			i := slices.IndexFunc(queues, func(q topology.Queue) bool { return q.Name == name })
			all = append(all, &place{target: w.target, queue: name, ttl: queues[i].Delay, ladder: &l, level: level,
				arguments: queues[i].Arguments})
		}
	}
	slices.Reverse(all)

	return all
}

// WaitQueue is a queue in which messages wait for a target, and maybe for others.
type WaitQueue struct {
	// Name of the queue, and how long each message waits in it.
	Name  string
	Delay time.Duration
	// Ladder is the name of its ladder; empty for a retry queue.
	Ladder string
	// Ready is how many messages it has to give, those for other targets included.
	Ready int

	place *place
}

// Queues are the queues in which messages may wait for the target, those with the longest delays
// first.
func (w *Waits) Queues(ctx context.Context) ([]WaitQueue, error) {
	places, err := w.places()
	if err != nil {
		return nil, err
	}
	link, err := w.client.link(ctx)
	if err != nil {
		return nil, err
	}
	a := w.client.asker(link)
	older, err := w.older(ctx, link)
	if err != nil {
		return nil, err
	}
	for _, p := range older {
		if !slices.ContainsFunc(places, func(o *place) bool { return o.queue == p.queue }) {
			places = append(places, p)
		}
	}
	for _, l := range w.ladders {
		there, err := exists(a, l.Delivery())
		if err != nil {
			return nil, err
		}
		if there { // else there would be an error for each queue in the log of the broker
			places = append(places, w.ladder(l)...)
		}
	}

	found, err := counted(a, places)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(found, func(a, b WaitQueue) int { return cmp.Compare(b.Delay, a.Delay) })

	return found, nil
}

// counted are the queues that are there, with how many messages each has to give. A quorum queue
// that does not answer at once is said to have none: so a 0 must be said twice. One channel asks
// for all queues, until one is missing.
func counted(a asker, places []*place) (found []WaitQueue, err error) {
	for len(places) > 0 {
		err := a.onChannel(func(channel *amqp091.Channel) error {
			for ; len(places) > 0; places = places[1:] {
				p, ready := places[0], 0
				for again := 0; again < 2 && ready == 0; again++ {
					q, err := channel.QueueDeclarePassive(p.queue, true, false, false, false, nil)
					if err != nil {
						return err
					}
					ready = q.Messages
				}
				q := WaitQueue{Name: p.queue, Delay: p.ttl, Ready: ready, place: p}
				if p.ladder != nil {
					q.Ladder = p.ladder.Name()
				}
				found = append(found, q)
			}
			return nil
		})
		if e := (*amqp091.Error)(nil); errors.As(err, &e) && e.Code == amqp091.NotFound {
			places = places[1:]
			continue
		}
		if err != nil {
			return nil, explainAccess(rabbitmq.KindQueue, places[0].queue, err)
		}
	}

	return found, nil
}

func exists(a asker, exchange string) (bool, error) {
	err := a.onChannel(func(channel *amqp091.Channel) error {
		return channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeTopic, true, false, false, false, nil)
	})
	if e := (*amqp091.Error)(nil); errors.As(err, &e) && e.Code == amqp091.NotFound {
		return false, nil
	}

	return err == nil, err
}

// queue is one of the queues as the code for dead letters has it.
func (w *Waits) queue(q WaitQueue) *Queue {
	of := w.client.DeadLetterQueue(q.Name, w.MainQueue())
	of.place = q.place

	return of
}
