package publish

import (
	"context"
	"fmt"
	"sync"
	"time"
	"weak"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

const (
	// declareWait is how long a caller waits for the broker's answer to a declaration. The
	// declaration itself goes on: RabbitMQ from 4.0 on takes a minute to tell that the node of a
	// classic queue is down.
	//
	// Upstream: a declaration of a classic queue whose node is down takes a minute.
	declareWait = 30 * time.Second
	// subscribedAge is how long a shared object that was declared is taken to be there, by those
	// who subscribe.
	subscribedAge = time.Minute
)

// Declared remembers what was declared, by any key that stands for it.
type Declared struct {
	mu      sync.Mutex
	objects map[any]*Object
}

// Of returns what is known of an object. It is the same one each time.
func (d *Declared) Of(key any) *Object {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.objects == nil {
		d.objects = map[any]*Object{}
	}
	if d.objects[key] == nil {
		d.objects[key] = &Object{}
	}

	return d.objects[key]
}

// DeclarePlan declares a plan over a channel of a link. It leaves out the objects shared with other
// plans that were declared less than a minute ago, since the link is there. It waits no longer than
// ctx for a declaration that another caller has started. After an error the whole is declared next
// time. Without a link, what was declared over any of them is left out.
func (d *Declared) DeclarePlan(ctx context.Context, link *connection.Link, channel topology.Channel,
	plan topology.Plan) error {
	return d.declarePlan(ctx, link, channel, plan, time.Now().Add(-subscribedAge))
}

func (d *Declared) declarePlan(ctx context.Context, link *connection.Link, channel topology.Channel,
	plan topology.Plan, after time.Time) error {
	if link != nil {
		after = latest(after, link.Opened()) // it may lead to another broker than the one before
	}
	shared, own := split(plan)
	isSkipped, err := d.declareShared(ctx, link, channel, shared, after)
	if err == nil {
		err = own.Declare(channel)
	}
	if err != nil {
		for _, part := range shared {
			d.Of(part.key).Forget()
		}
	}
	// Somebody has deleted what was left out. Not for a ladder, whose other targets would have to
	// be bound again.
	if isSkipped && isMissing(err) && link != nil && plan.Ladder == nil {
		return link.OnChannel(func(channel *amqp091.Channel) error { return plan.Declare(channel) })
	}

	return err
}

// declareShared declares what was not declared after a time, and reports whether it left some out.
func (d *Declared) declareShared(ctx context.Context, link *connection.Link, channel topology.Channel,
	shared []sharedPart, after time.Time) (isSkipped bool, err error) {
	for _, part := range shared {
		o := d.Of(part.key)
		if o.declaredSince(after) {
			isSkipped = true
			continue
		}
		if err := o.DeclareHere(ctx, link, after, func() error { return part.plan().Declare(channel) }); err != nil {
			return isSkipped, err
		}
	}

	return isSkipped, nil
}

// sharedPart is an exchange, a queue with its bindings, or a ladder, that many plans share.
type sharedPart struct {
	key  string
	plan func() topology.Plan
}

// split returns the parts of a plan that others share, in the order of their declaration, and the
// rest, which needs them.
func split(plan topology.Plan) (shared []sharedPart, own topology.Plan) {
	add := func(part topology.Plan) {
		key := fmt.Sprint(part.Exchanges, part.Queues, part.Bindings)
		shared = append(shared, sharedPart{key, func() topology.Plan { return part }})
	}
	if plan.Ladder != nil { // more than a hundred objects
		shared = append(shared, sharedPart{"ladder " + plan.Ladder.Name(), plan.Ladder.Shared})
	}
	for _, x := range plan.Exchanges {
		if x.Shared {
			add(topology.Plan{Exchanges: []topology.Exchange{x}})
		} else {
			own.Exchanges = append(own.Exchanges, x)
		}
	}
	sharedQueues := map[string]bool{}
	for _, q := range plan.Queues {
		if !q.Shared {
			own.Queues = append(own.Queues, q)
			continue
		}
		sharedQueues[q.Name] = true
		part := topology.Plan{Queues: []topology.Queue{q}}
		for _, b := range plan.Bindings {
			if b.Queue == q.Name {
				part.Bindings = append(part.Bindings, b)
			}
		}
		add(part)
	}
	for _, b := range plan.Bindings {
		if !sharedQueues[b.Queue] {
			own.Bindings = append(own.Bindings, b)
		}
	}

	return shared, own
}

// Object is something that is declared, or asked for, once for all who need it. There is one
// declaration at a time. Each has a goroutine of its own and ends with the broker's answer or the
// connection, so a broker that does not answer keeps one channel, and callers wait for as long as
// they like. The zero value is an object that was not declared.
type Object struct {
	mu       sync.Mutex
	running  *declaration
	declared time.Time // when it was declared last
	// link is the one on which it was: an object that nobody needs any more keeps no connection
	// that is lost.
	link weak.Pointer[connection.Link]
}

// declaration is one that all callers share who come while it runs.
type declaration struct {
	link *connection.Link
	done chan struct{}
	err  error // read after done
}

// Declare runs declare, or joins the one that runs. It does nothing if one has succeeded after the
// time given, and on this link if that is not nil.
func (o *Object) Declare(ctx context.Context, link *connection.Link, after time.Time, declare func() error) error {
	d, _ := o.join(link, after, declare)

	return d.wait(ctx)
}

// DeclareHere is [Object.Declare] for a declaration over a channel that the caller closes
// afterwards, and for callers who bound the wait themselves. A caller whose declaration runs waits
// until it ends: with the broker's answer, or with the connection. A caller who joins waits for
// that or for the end of ctx.
func (o *Object) DeclareHere(ctx context.Context, link *connection.Link, after time.Time, declare func() error) error {
	d, begun := o.join(link, after, declare)
	if begun {
		<-d.done
	}
	select {
	case <-d.done: // also when ctx has ended
		return d.err
	default:
	}
	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Forget makes it be declared again.
func (o *Object) Forget() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.declared = time.Time{}
}

// WasDeclared tells whether it was declared, over whatever link, and not forgotten since.
func (o *Object) WasDeclared() bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	return !o.declared.IsZero()
}

// declaredSince tells whether it was declared after a time, over whatever link.
func (o *Object) declaredSince(after time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.declared.After(after)
}

// isRunning tells whether there is a declaration that the broker has not answered yet.
func (o *Object) isRunning() bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.running != nil
}

// declaredBefore is a declaration that has ended without an error.
var declaredBefore = func() *declaration {
	d := &declaration{done: make(chan struct{})}
	close(d.done)

	return d
}()

// join starts a declaration, unless one runs or has succeeded. One that runs on an earlier link is
// not joined.
func (o *Object) join(link *connection.Link, after time.Time, declare func() error) (d *declaration, begun bool) {
	o.mu.Lock()
	defer o.mu.Unlock()

	switch {
	case o.declared.After(after) && (link == nil || weak.Make(link) == o.link):
		return declaredBefore, false
	case o.running != nil && o.running.link == link:
		return o.running, false
	}
	o.running = &declaration{link: link, done: make(chan struct{})}
	go o.run(o.running, declare)

	return o.running, true
}

func (o *Object) run(d *declaration, declare func() error) {
	defer close(d.done)
	d.err = declare()

	o.mu.Lock()
	defer o.mu.Unlock()

	if o.running != d {
		return // another link has taken its place
	}
	o.running = nil
	if d.err == nil {
		o.declared, o.link = time.Now(), weak.Make(d.link)
	}
}

// wait returns the result of a declaration, unless ctx ends or the broker does not answer before.
func (d *declaration) wait(ctx context.Context) error {
	select {
	case <-d.done: // also when ctx has ended
		return d.err
	default:
	}
	timeout := time.NewTimer(declareWait)
	defer timeout.Stop()

	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		return fmt.Errorf("cannot declare what is missing: the broker has not answered for %s", declareWait)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}

	return b
}
