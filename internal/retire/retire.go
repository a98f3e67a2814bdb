package retire

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

const (
	retirePoll = time.Second // between requests
	// retirePatience is how long beyond its delay a queue is waited for: more than the 3 minutes
	// after which a quorum queue tries again to hand over what the main queue did not take.
	retirePatience = 4 * time.Minute
	// wholePatience is how long statistics of a queue are waited for in which nothing waits for a
	// delay.
	wholePatience = time.Minute
	retireCleanup = 5 * time.Second // for the mark when the context is over

	settling   = 2 * time.Second  // that a copy may need from the exchange into the queue
	renewals   = 3                // of the statistics that prove what they say
	classicLag = 12 * time.Second // of the statistics of a classic queue: 5 s to report, 5 s to collect, and some
)

// Error says why a queue, or an exchange, was not deleted. It has lost nothing: what
// waits in it still comes back. A queue may be unbound by now, which an instance that still needs
// it undoes by itself.
type Error struct {
	Queue    string // that was to be retired; empty for an exchange
	Exchange string // that was to be retired; empty for a queue
	InUse    bool   // somebody uses it, or it is another queue; else it was not empty in time
	Messages int64  // in the queue, as the management API last said; -1 if it did not say
	Found    string // what shows the use, or what is in the queue
	Do       string // what to do about it
	Err      error  // what ended the wait, such as context.DeadlineExceeded; or nil
}

func (e *Error) Error() string {
	object := fmt.Sprintf("queue %q", e.Queue)
	if e.Exchange != "" {
		object = fmt.Sprintf("exchange %q", e.Exchange)
	}
	text := fmt.Sprintf("%s was not deleted: %s; %s", object, e.Found, e.Do)
	if e.Err != nil {
		text += fmt.Sprintf(" (%v)", e.Err)
	}
	return text
}

// Unwrap returns what ended the wait.
func (e *Error) Unwrap() error { return e.Err }

// Delete deletes an obsolete retry queue once it is proven empty:
//
//  1. It removes the queue's binding, so nobody can route into it any more.
//  2. It waits until the management API says, in statistics that are certainly younger, that the
//     queue has no messages. That takes some 20 s with the broker's defaults. Messages in the queue
//     return to the main queue after their delay, so give the context the queue's Delay and half a
//     minute. Delete gives up 4 minutes after the delay.
//  3. It deletes the queue, unless somebody has bound it again. An instance with the old policy
//     does that when its next copy for this queue is returned to it, and continues without loss.
//
// A queue that does not exist is no error. If the queue stays, the error is a *[Error], or an
// *[httpapi.Error] when the API did not answer or refused. Delete can be called again at any time.
// Of two calls at once for the same queue, at least one stops with a *[Error].
//
// End all instances with the old policy first. No check can exclude one that binds the queue and
// publishes into it in the milliseconds before the deletion, nor somebody who publishes into it by
// its name, without a binding.
func Delete(ctx context.Context, client *httpapi.Client, queue Queue) error {
	r := &retirement{client: client, queue: queue, token: rand.Text()}
	patience := queue.Delay + retirePatience
	if queue.Whole {
		patience = wholePatience
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := r.awaitEmpty(bounded)
	if err == nil && queue.Last != nil {
		err = queue.Last(bounded)
	}
	if err == nil {
		err = r.delete(bounded)
	} else if bounded.Err() != nil && errors.Is(err, bounded.Err()) {
		err = r.notInTime(err)
	}
	if errors.Is(err, errRetired) {
		return nil
	}
	if r.marked && err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), retireCleanup)
		defer cancel()
		r.unmark(cleanup)
	}
	return err
}

// DeleteAll deletes queues, up to 16 at a time, as each waits for its own messages and statistics.
// It calls begun before each, and done after each, one at a time.
func DeleteAll(ctx context.Context, client *httpapi.Client, queues []Queue, begun func(int), done func(int, error)) {
	var all sync.WaitGroup
	var mu sync.Mutex
	turns := make(chan struct{}, 16) // requests of each come every second
	for i, q := range queues {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			mu.Lock()
			begun(i)
			mu.Unlock()
			err := Delete(ctx, client, q)
			mu.Lock()
			defer mu.Unlock()
			done(i, err)
		})
	}
	all.Wait()
}

// errRetired means that the queue is gone.
var errRetired = errors.New("the queue does not exist any more")

// retirement is one call of [Delete].
type retirement struct {
	client *httpapi.Client
	queue  Queue
	token  string

	last   httpapi.Queue // the API's last answer
	marked bool          // perhaps: the request was sent
}

// awaitEmpty unbinds the queue and returns nil when it was proven empty since, and nobody has used
// it.
func (r *retirement) awaitEmpty(ctx context.Context) error {
	if err := r.check(ctx); err != nil {
		return err
	}
	if err := r.unbind(ctx); err != nil {
		return err
	}
	proof := freshness{classic: r.classic(), since: time.Now()}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retirePoll):
		}
		asked := time.Now()
		if err := r.look(ctx); err != nil {
			return err
		}
		proof.add(r.last, asked)
		// The last check before the deletion is that of the bindings, which have no lag.
		if err := r.untouched(ctx); err != nil {
			return err
		}
		if proof.certain && empty(r.last) {
			return nil
		}
	}
}

// check finds what is wrong before anything is changed.
func (r *retirement) check(ctx context.Context) error {
	ms := r.queue.Delay.Milliseconds()
	if !r.queue.Whole && (ms < 1 || r.queue.Arguments[amqp.QueueMessageTTLArg] != ms) {
		return r.inUse("it is no retry queue, whose x-message-ttl is its delay", "retire only what Obsolete returns")
	}
	if disabled, err := r.client.StatisticsDisabled(ctx); err != nil {
		return err
	} else if disabled {
		return r.kept(nil, "the broker collects no statistics, so the API does not show its messages", "remove "+
			"management_agent.disable_metrics_collector and management.disable_stats from its configuration")
	}
	if err := r.look(ctx); err != nil {
		return err
	}
	if r.last.State == "down" {
		return r.notInTime(nil)
	}
	return nil
}

// classic reports the type that the queue has: without an argument it is the default of the virtual
// host.
func (r *retirement) classic() bool { return r.last.Type == amqp.QueueTypeClassic }

// look asks for the queue. It must be the one that is meant, and nobody may consume from it.
func (r *retirement) look(ctx context.Context) error {
	queue, err := r.client.Queue(ctx, r.queue.Name)
	if httpapi.NotFound(err) {
		return errRetired
	}
	if err != nil {
		return err
	}
	r.last = queue
	for _, argument := range []string{
		amqp.QueueTypeArg, amqp.QueueMessageTTLArg, "x-dead-letter-exchange", "x-dead-letter-routing-key",
	} {
		if wanted, found := r.queue.Arguments[argument], queue.Arguments[argument]; wanted != found {
			return r.inUse(fmt.Sprintf("it is another queue of that name: its %s is %#v instead of %#v",
				argument, found, wanted), "leave it, or find out whose it is")
		}
	}
	if n := queue.Consumers; n != nil && *n > 0 && !r.queue.Whole { // else they have just ended, perhaps
		return r.inUse(fmt.Sprintf("consumers on it: %d (the API's statistics may be some seconds old)", *n),
			"end them")
	}
	return nil
}

// unbind leaves the queue with no binding but the mark. A binding from elsewhere than the retry
// exchange is not ours to remove.
func (r *retirement) unbind(ctx context.Context) error {
	bindings, err := r.client.Bindings(ctx, r.queue.Name)
	if err != nil {
		return err
	}
	var marks, routes []httpapi.Binding
	for _, b := range bindings {
		switch {
		case IsMark(b):
			marks = append(marks, b)
		case b.Exchange == r.queue.RetryExchange, slices.Contains(r.queue.Others, b.Exchange):
			routes = append(routes, b)
		case b.Arguments[header.FirstDeathReason] != nil:
			return r.inUse(fmt.Sprintf("the rejected exchange %q leads to it", b.Exchange), "recreate the main "+
				"queue that dead-letters to that exchange, then retire the exchange first")
		case r.queue.RetryExchange == "":
			return r.inUse(fmt.Sprintf("it is bound to exchange %q, which is not of this library", b.Exchange),
				"remove that binding, if nothing needs it")
		default:
			return r.inUse(fmt.Sprintf("it is bound to exchange %q, which is not the retry exchange %q",
				b.Exchange, r.queue.RetryExchange), "remove that binding, if nothing needs it")
		}
	}
	if err := r.mark(ctx); err != nil {
		return err
	}
	// The marks of others first: they stop when theirs is gone, and must not miss that it was bound
	// meanwhile.
	for _, b := range append(marks, routes...) {
		if err := r.client.Unbind(ctx, b); err != nil && !httpapi.NotFound(err) {
			return err
		}
	}
	return nil
}

const amqHeaders = "amq.headers"

// mark adds a binding that no message matches, with a token of its own. As long as the mark exists,
// the queue is the one that was unbound: not deleted and declared again, and not unbound by
// somebody else after it was in use again.
func (r *retirement) mark(ctx context.Context) (err error) {
	r.marked = true
	// If somebody has deleted the retry exchange, there is still one of its type in every virtual
	// host.
	for _, exchange := range []string{cmp.Or(r.queue.RetryExchange, amqHeaders), amqHeaders} {
		err = r.client.Bind(ctx, httpapi.Binding{Exchange: exchange, Queue: r.queue.Name, Key: r.token,
			Arguments: httpapi.Arguments{"x-match": "all", header.Retire: r.token}})
		if !httpapi.NotFound(err) {
			return err
		}
	}
	return cmp.Or(r.look(ctx), err) // with neither exchange it is the queue that is not there
}

// IsMark tells a binding that Delete has made, and that matches no message.
func IsMark(b httpapi.Binding) bool { return b.Arguments[header.Retire] != nil }

func (r *retirement) isOwnMark(b httpapi.Binding) bool {
	return b.Arguments[header.Retire] == r.token
}

// unmark leaves, if it fails, a binding that matches nothing, and that the next Retire removes.
func (r *retirement) unmark(ctx context.Context) {
	bindings, _ := r.client.Bindings(ctx, r.queue.Name)
	for _, b := range bindings {
		if r.isOwnMark(b) {
			_ = r.client.Unbind(ctx, b)
		}
	}
}

// untouched returns nil if the queue has the mark and no other binding.
func (r *retirement) untouched(ctx context.Context) error {
	bindings, err := r.client.Bindings(ctx, r.queue.Name)
	if err != nil {
		return err
	}
	for _, b := range bindings {
		if !IsMark(b) {
			return r.inUse(fmt.Sprintf("it was bound to exchange %q again, as an old instance does", b.Exchange),
				"end all old instances")
		}
	}
	if len(bindings) != 1 || !r.isOwnMark(bindings[0]) {
		return r.inUse("another Retire is at work on it, or it was deleted and declared again meanwhile",
			"end all instances with the old policy, and retire it once")
	}
	return nil
}

// delete has no condition for a quorum queue, which knows none. A classic queue refuses (400) if it
// has messages or consumers. Without an answer nobody knows whether the queue is gone.
func (r *retirement) delete(ctx context.Context) error {
	err := r.client.DeleteQueue(ctx, r.queue.Name, r.classic())
	if httpapi.NotFound(err) {
		return cmp.Or(r.look(ctx), err)
	}
	return err
}

func (r *retirement) inUse(found, do string) error {
	return &Error{Queue: r.queue.Name, InUse: true, Messages: -1, Found: found, Do: do}
}

func (r *retirement) kept(cause error, found, do string) error {
	messages := int64(-1)
	if r.last.Messages != nil {
		messages = *r.last.Messages
	}
	return &Error{Queue: r.queue.Name, Messages: messages, Found: found, Do: do, Err: cause}
}

// notInTime says what the queue still has.
func (r *retirement) notInTime(cause error) error {
	q := r.last
	some := func(n *int64) bool { return n != nil && *n > 0 }
	switch {
	case q.Messages == nil:
		return r.kept(cause, fmt.Sprintf("the API does not show its messages (state %q)", q.State),
			"start its nodes, or wait until a broker that was just started has statistics")
	case some(q.Undeliverable):
		target := cmp.Or(r.queue.Arguments["x-dead-letter-routing-key"], r.queue.Arguments["x-dead-letter-exchange"])
		return r.kept(cause, fmt.Sprintf("messages in it: %d; not accepted by %q, where they return to: %d",
			*q.Messages, target, *q.Undeliverable),
			"if that queue is missing, declare it again, and they return within 3 minutes; or move them by hand")
	case some(q.Delayed):
		return r.kept(cause, fmt.Sprintf("messages in it: %d; held by the broker until their x-opt-delivery-time: %d",
			*q.Messages, *q.Delayed), "wait until then")
	case some(q.Consumers):
		return r.kept(cause, fmt.Sprintf("consumers on it: %d", *q.Consumers), "end them")
	case some(q.Messages) && r.queue.Whole:
		return r.kept(cause, fmt.Sprintf("messages in it: %d", *q.Messages), "let a consumer handle them, or move them")
	case some(q.Messages):
		return r.kept(cause, fmt.Sprintf("waiting messages: %d", *q.Messages),
			"give it more time than its delay of "+config.FormatDelay(r.queue.Delay))
	case !r.classic() && !q.HasMajority():
		return r.kept(cause, fmt.Sprintf("of its members %v only %v are online, so messages may still be on "+
			"their way to it", q.Members, q.Online), "start its nodes")
	default:
		return r.kept(cause, "no statistics yet that are new enough to prove it empty",
			"give it half a minute")
	}
}

// empty needs every number that counts messages to be there, or not to exist for this type of
// queue. Nobody may consume.
func empty(q httpapi.Queue) bool {
	zero := func(n *int64) bool { return n != nil && *n == 0 }
	return zero(q.Messages) && zero(q.Ready) && zero(q.Unacked) && (q.Consumers == nil || zero(q.Consumers)) &&
		(q.Undeliverable == nil || zero(q.Undeliverable)) && (q.Delayed == nil || zero(q.Delayed))
}

// freshness finds out whether the API's numbers of a queue were counted after the queue was
// unbound. The numbers have no time, and the API does not tell how often they are renewed.
//
// A quorum queue reports its reductions together with its messages, and they grow with each report.
// The first new value after the unbinding was collected after it. The second was counted after the
// first was collected, so after the unbinding. The third shows that the collection of the second is
// complete. All must come from one leader with a majority: without it, messages that are on their
// way into the queue are in no number.
//
// An idle classic queue does not renew its numbers, so time must do. It refuses the deletion itself
// if it is not empty.
type freshness struct {
	classic bool
	since   time.Time // the unbinding

	source     string // of the numbers: the leader, and the node that answered
	reductions int64
	renewed    int
	certain    bool // the last numbers are younger than the unbinding
}

// add takes the API's answer to a request that was sent at a time.
func (f *freshness) add(q httpapi.Queue, at time.Time) {
	age, source := at.Sub(f.since), q.Leader+" "+q.Node
	switch {
	case f.classic:
		f.certain = age >= settling+classicLag
		return
	case age < settling:
	case q.Reductions == nil || !q.HasMajority():
		f.source, f.renewed = "", 0
	case f.source != source || *q.Reductions < f.reductions: // another leader counts for itself
		f.source, f.reductions, f.renewed = source, *q.Reductions, 0
	case *q.Reductions > f.reductions:
		f.reductions = *q.Reductions
		f.renewed++
	}
	f.certain = f.renewed >= renewals
}
