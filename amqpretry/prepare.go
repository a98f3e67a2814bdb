package amqpretry

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/internal/consumer"
)

const (
	// preparePatience is how long a router waits for the broker to answer one more declaration
	// before it goes on to subscribe, which waits again.
	preparePatience = 15 * time.Second
	// preparedFor is how long what was prepared waits for Subscribe.
	preparedFor = time.Minute
)

// prepared is the queue of a topic for the next Subscribe: it is registered, and its topology is
// declared or being declared.
type prepared struct {
	subscriber *Subscriber
	topic      string
	queue      *consumer.Queue
	forget     func() // what is known of its declaration
}

// Prepare declares the topologies of topics, 8 at a time. Then Subscribe declares nothing for them:
// a router subscribes to one topic after the other, so many topics start faster. The plugin
// Retrier.CheckRouter does the same for the handlers that it finds. Prepare is for routers
// without the plugin, and for handlers that are added later.
//
// It returns the errors of all topics, joined: those of Subscribe. Topics without an error are
// prepared all the same. When ctx ends, and when the broker has not answered a declaration for 2
// minutes, it gives up, and Subscribe declares the rest.
//
// Subscribe may be called during Prepare. Without a Subscribe, the retrier forgets the topic after
// a minute, and declares it again later. A queue whose name is generated anew each time is the one
// that the next Subscribe consumes from.
func (s *Subscriber) Prepare(ctx context.Context, topics ...string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })()

	if err := s.consumer.Connect(ctx); err != nil {
		return err
	}
	var all []*prepared
	for _, topic := range topics {
		all = append(all, &prepared{subscriber: s, topic: topic})
	}

	return s.retrier.prepare(ctx, 0, all)
}

// prepareRoutes prepares the topics that a router is about to subscribe to. What fails is left to
// Subscribe.
func (r *Retrier) prepareRoutes(found []route) {
	var all []*prepared
	for _, h := range found {
		if from, _ := r.origin(h.subscriber); from == own && !h.started {
			all = append(all, &prepared{subscriber: (*Subscriber)(h.subscriber.UnsafePointer()), topic: h.topic})
		}
	}
	if len(all) > 0 {
		_ = r.prepare(r.ctx, preparePatience, all)
	}
}

// prepare prepares topics of any subscribers, each once.
func (r *Retrier) prepare(ctx context.Context, patience time.Duration, all []*prepared) error {
	var (
		errs     []error
		held     []*prepared
		work     []consumer.Preparation
		declared int
	)
	for _, p := range all {
		switch p, err := p.subscriber.hold(p); {
		case err != nil:
			errs = append(errs, err)
		case !slices.Contains(held, p):
			held = append(held, p)
			work = append(work, consumer.Preparation{Consumer: p.subscriber.consumer, Queue: p.queue})
		}
	}
	topics, objects, began := len(errs)+len(held), map[object]struct{}{}, time.Now()
	err := consumer.Prepare(ctx, patience, work, func(i int, err error) {
		if err != nil {
			held[i].drop()
			errs = append(errs, err)
			return
		}
		declared++
		for _, o := range objectsOf(held[i].queue.Plan) {
			objects[o] = struct{}{}
		}
	})
	time.AfterFunc(preparedFor, func() {
		for _, p := range held {
			p.drop()
		}
	})
	if err != nil {
		errs = append(errs, err)
	}

	fields := watermill.LogFields{"topics": declared, "objects": len(objects),
		"took": time.Since(began).Round(time.Millisecond).String()}
	switch {
	case r.options.AssumeTopology: // declared nothing
	case len(errs) == 0:
		r.options.Logger.Info("Declared the topology of all topics", fields)
	default:
		fields["failed"], fields["error"] = topics-declared, errs[0].Error()
		r.options.Logger.Info("Declared the topology of some topics; Subscribe declares the rest", fields)
	}

	return errors.Join(errs...)
}

// hold registers a topic until Subscribe takes it, or until drop. It returns what is held for the
// topic already.
func (s *Subscriber) hold(p *prepared) (*prepared, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if before := s.prepared[p.topic]; before != nil {
		return before, nil
	}
	if s.ctx.Err() != nil {
		return nil, context.Cause(s.ctx)
	}
	queue, _, err := s.queue(p.topic)
	if err != nil {
		return nil, err
	}
	p.queue, p.forget = queue, s.consumer.Remember(queue)
	s.prepared[p.topic] = p

	return p, nil
}

// take takes what is held for a topic; nil if there is nothing.
func (s *Subscriber) take(topic string) *prepared {
	s.mu.Lock()
	defer s.mu.Unlock()

	p := s.prepared[topic]
	delete(s.prepared, topic)

	return p
}

// drop ends what nobody has taken.
func (p *prepared) drop() {
	s := p.subscriber
	s.mu.Lock()
	isHeld := s.prepared[p.topic] == p
	if isHeld {
		delete(s.prepared, p.topic)
	}
	s.mu.Unlock()

	if isHeld {
		p.forget()
		p.queue.Ended()
	}
}
