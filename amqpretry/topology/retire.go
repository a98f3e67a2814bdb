package topology

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/management"
)

const (
	// retirePoll is how often the API is asked.
	retirePoll = time.Second
	// retirePatience is how long beyond its delay a queue is waited for at most: more than the 3 minutes after which a
	// quorum queue tries again to hand over what the main queue did not take.
	retirePatience = 4 * time.Minute
	// retireCleanup bounds taking the mark away when the context is over.
	retireCleanup = 5 * time.Second
)

// Retire deletes an obsolete retry queue, once it is certainly empty:
//
//  1. It takes away the queue's binding, so that nobody can route into it any more.
//  2. It waits until the management API says that there are no messages in it, in statistics that are certainly younger
//     than that: some 20 s with the broker's defaults. What waits in the queue goes back to the main queue when its delay
//     is over, so the context should leave the queue's Delay and half a minute. Retire gives up by itself 4 minutes after
//     the delay.
//  3. It deletes the queue, if nobody has bound it again meanwhile. An instance with the old policy does that when its next
//     copy for this queue is returned to it, and goes on without losing anything.
//
// A queue that is not there any more is no error. Otherwise the queue stays, with all that is in it: an *[InUseError]
// tells who uses it, a *[NotEmptyError] what is in it, and a *[ManagementError] why the API could not be asked. Retire
// can be called again at any time. Of two at once on the same queue at least one stops with an *[InUseError].
//
// What no check can exclude: an instance with the old policy that binds the queue and publishes into it in the
// milliseconds between the last look and the deletion, and somebody who publishes into it by its name, without a
// binding. So end all of them before.
func (m Management) Retire(ctx context.Context, queue ObsoleteQueue) error {
	client, err := m.client()
	if err != nil {
		return err
	}
	r := &retirement{client: client, queue: queue, token: rand.Text()}
	bounded, cancel := context.WithTimeout(ctx, queue.Delay+retirePatience)
	defer cancel()
	err = r.run(bounded)
	if bounded.Err() != nil && errors.Is(err, bounded.Err()) && !r.deleting {
		err = r.notInTime(err)
	}
	if r.marked && err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), retireCleanup)
		defer cancel()
		r.unmark(cleanup)
	}
	return err
}

// retirement is one call of [Management.Retire].
type retirement struct {
	client *management.Client
	queue  ObsoleteQueue
	token  string

	last     management.Queue // what the API said last
	proof    freshness
	marked   bool // or maybe: it was asked for
	deleting bool
}

func (r *retirement) run(ctx context.Context) error {
	if gone, err := r.check(ctx); gone || err != nil {
		return err
	}
	if gone, err := r.unbind(ctx); gone || err != nil {
		return err
	}
	r.proof = freshness{classic: r.classic(), since: time.Now()}
	ticker := time.NewTicker(retirePoll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		asked := time.Now()
		if gone, err := r.look(ctx); gone || err != nil {
			return err
		}
		r.proof.add(r.last, asked)
		// The last look before the deletion is the one at the bindings, which have no lag.
		if err := r.untouched(ctx); err != nil {
			return err
		}
		if r.proof.certain() && empty(r.last) {
			return r.delete(ctx)
		}
	}
}

// check finds what is wrong before anything is changed.
func (r *retirement) check(ctx context.Context) (gone bool, err error) {
	if ms := r.queue.Delay.Milliseconds(); ms < 1 || r.queue.Arguments[amqp.QueueMessageTTLArg] != ms {
		return false, r.inUse("it is no retry queue, whose x-message-ttl is its delay", "retire only what Obsolete lists")
	}
	disabled, err := r.client.StatisticsDisabled(ctx)
	if err != nil {
		return false, err
	}
	if disabled {
		return false, &NotEmptyError{Queue: r.queue.Name, Messages: -1,
			Found: "the broker keeps no statistics, so the API does not say what is in it",
			Do: "remove management_agent.disable_metrics_collector and management.disable_stats from its configuration, " +
				"or use the commands of RetireCommands"}
	}
	if gone, err := r.look(ctx); gone || err != nil {
		return gone, err
	}
	if r.last.State == "down" {
		return false, r.notInTime(nil)
	}
	return false, nil
}

func (r *retirement) classic() bool {
	return r.queue.Arguments[amqp.QueueTypeArg] == string(config.QueueTypeClassic)
}

// look asks for the queue. It must be the one that is meant, and nobody may consume it.
func (r *retirement) look(ctx context.Context) (gone bool, err error) {
	queue, err := r.client.Queue(ctx, r.queue.Name)
	if management.NotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	r.last = queue
	for _, argument := range []string{amqp.QueueTypeArg, amqp.QueueMessageTTLArg, "x-dead-letter-exchange", "x-dead-letter-routing-key"} {
		if wanted, found := r.queue.Arguments[argument], queue.Arguments[argument]; wanted != found {
			return false, r.inUse(fmt.Sprintf("it is another queue of that name: its %s is %#v instead of %#v", argument, found, wanted),
				"leave it, or find out whose it is")
		}
	}
	if n := queue.Consumers; n != nil && *n > 0 {
		return false, r.inUse(fmt.Sprintf("consumers on it: %d (the API's statistics may be some seconds old)", *n), "end them")
	}
	return false, nil
}

// unbind leaves the queue with no binding but the mark. One from elsewhere than the retry exchange is not ours to
// remove.
func (r *retirement) unbind(ctx context.Context) (gone bool, err error) {
	bindings, err := r.client.Bindings(ctx, r.queue.Name)
	if err != nil {
		return false, err
	}
	for _, b := range bindings {
		if b.Exchange != r.queue.Binding.Exchange && !isMark(b) {
			found := fmt.Sprintf("it is bound to exchange %q, which is not the retry exchange %q", b.Exchange, r.queue.Binding.Exchange)
			return false, r.inUse(found, "remove that binding, if nobody needs it")
		}
	}
	if gone, err := r.mark(ctx); gone || err != nil {
		return gone, err
	}
	// The marks of others first: they stop when theirs is gone, and must not miss that it was bound meanwhile.
	for _, marks := range []bool{true, false} {
		for _, b := range bindings {
			if isMark(b) != marks {
				continue
			}
			if err := r.client.Unbind(ctx, b); err != nil && !management.NotFound(err) {
				return false, err
			}
		}
	}
	return false, nil
}

// mark adds a binding that no message matches, with a token of our own. As long as it is there, the queue is still the
// one that we unbound: not deleted and declared again meanwhile, and not unbound by somebody else after it was in use
// again.
func (r *retirement) mark(ctx context.Context) (gone bool, err error) {
	r.marked = true
	// If somebody has deleted the retry exchange, there is still one of its type in every virtual host.
	for _, exchange := range []string{r.queue.Binding.Exchange, "amq.headers"} {
		err = r.client.Bind(ctx, management.Binding{Exchange: exchange, Queue: r.queue.Name, Key: r.token,
			Arguments: management.Arguments{"x-match": "all", header.Retire: r.token}})
		if !management.NotFound(err) {
			return false, err
		}
	}
	return r.lookAfter(ctx, err) // with neither exchange it is the queue that is not there
}

// lookAfter explains a 404: the queue is gone, or it is there and something else is wrong with it.
func (r *retirement) lookAfter(ctx context.Context, notFound error) (gone bool, err error) {
	gone, err = r.look(ctx)
	if !gone && err == nil {
		err = notFound
	}
	return gone, err
}

func isMark(b management.Binding) bool { return b.Arguments[header.Retire] != nil }

func (r *retirement) isOwnMark(b management.Binding) bool {
	return b.Arguments[header.Retire] == r.token
}

func (r *retirement) unmark(ctx context.Context) {
	// What fails here leaves a binding that matches nothing, and that the next Retire removes.
	bindings, _ := r.client.Bindings(ctx, r.queue.Name)
	for _, b := range bindings {
		if r.isOwnMark(b) {
			_ = r.client.Unbind(ctx, b)
		}
	}
}

// untouched reports whether the queue has the mark and no other binding.
func (r *retirement) untouched(ctx context.Context) error {
	bindings, err := r.client.Bindings(ctx, r.queue.Name)
	if err != nil {
		return err
	}
	marked := false
	for _, b := range bindings {
		switch {
		case r.isOwnMark(b):
			marked = true
		case isMark(b):
			return r.inUse("another Retire is at work on it", "let one of them do it")
		default:
			return r.inUse(fmt.Sprintf("it was bound to exchange %q again, as an instance with the old policy does", b.Exchange),
				"end all instances with the old policy")
		}
	}
	if !marked {
		return r.inUse("it was deleted and declared again meanwhile, or another Retire has taken it over",
			"end all instances with the old policy, and retire it once")
	}
	return nil
}

// delete is without a condition for a quorum queue, which knows none; a classic one is asked itself once more.
func (r *retirement) delete(ctx context.Context) error {
	r.deleting = true // from here on, without an answer nobody knows
	err := r.client.DeleteQueue(ctx, r.queue.Name, r.classic())
	var refused *ManagementError
	switch {
	case management.NotFound(err):
		_, err = r.lookAfter(ctx, err)
		return err
	case r.classic() && errors.As(err, &refused) && refused.Status == http.StatusBadRequest:
		return &NotEmptyError{Queue: r.queue.Name, Found: "the queue itself says that it has messages or consumers",
			Do: "find out whose they are, and retire it again", Err: err}
	default:
		return err
	}
}

func (r *retirement) inUse(found, do string) error {
	return &InUseError{Queue: r.queue.Name, Found: found, Do: do}
}

// notInTime says what the queue still has.
func (r *retirement) notInTime(cause error) error {
	e := &NotEmptyError{Queue: r.queue.Name, Messages: -1, Err: cause}
	if r.last.Messages != nil {
		e.Messages = *r.last.Messages
	}
	if r.last.Undeliverable != nil {
		e.Undeliverable = *r.last.Undeliverable
	}
	switch {
	case e.Messages < 0:
		e.Found = fmt.Sprintf("the API does not say what is in it (state %q)", r.last.State)
		e.Do = "bring up the nodes that it is on, or wait until a broker that was just started has statistics"
	case e.Undeliverable > 0:
		e.Found = fmt.Sprintf("messages in it: %d; of these not taken by %s, where they go back to: %d", e.Messages, r.target(), e.Undeliverable)
		e.Do = "if that is gone, declare it again, and they come within 3 minutes; or move them by hand"
	case r.last.Delayed != nil && *r.last.Delayed > 0:
		e.Found = fmt.Sprintf("messages in it: %d; of these held back until their x-opt-delivery-time: %d", e.Messages, *r.last.Delayed)
		e.Do = "wait until then, and retire it again"
	case e.Messages > 0:
		e.Found = fmt.Sprintf("messages that wait in it: %d", e.Messages)
		e.Do = fmt.Sprintf("give it more time than its delay of %s", config.FormatDelay(r.queue.Delay))
	case !r.classic() && !r.last.HasMajority():
		e.Found = fmt.Sprintf("of its members %v only %v are online, so it may yet get messages that are on their way",
			r.last.Members, r.last.Online)
		e.Do = "bring up the nodes that it is on"
	default:
		e.Found = "no statistics have come that are certainly young enough to say that it is empty"
		e.Do = "give it half a minute"
	}
	return e
}

func (r *retirement) target() string {
	if queue, ok := r.queue.Arguments["x-dead-letter-routing-key"]; ok {
		return fmt.Sprintf("queue %q", queue)
	}
	return fmt.Sprintf("exchange %q", r.queue.Arguments["x-dead-letter-exchange"])
}

// empty needs every number that counts messages to be there, or not to exist for this type of queue.
func empty(q management.Queue) bool {
	zero := func(n *int64) bool { return n != nil && *n == 0 }
	return zero(q.Messages) && zero(q.Ready) && zero(q.Unacked) &&
		(q.Undeliverable == nil || zero(q.Undeliverable)) && (q.Delayed == nil || zero(q.Delayed))
}
