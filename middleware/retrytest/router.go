package retrytest

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/middleware"
)

// subscriber hands the messages of a life to its router.
type subscriber struct {
	out  chan *message.Message
	once sync.Once
}

// Subscribe ends with its context or with Close: a router that closes makes sure of one of them
// only.
func (s *subscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	context.AfterFunc(ctx, func() { _ = s.Close() })

	return s.out, nil
}

func (s *subscriber) Close() error {
	s.once.Do(func() { close(s.out) })

	return nil
}

// String is the name by which a router knows the retrier's own subscriber.
func (s *subscriber) String() string { return "amqpretry.Subscriber" }

// publisher takes the outputs.
type publisher struct{ life *life }

var errRefused = errors.New("the publisher refuses: this is the fault that the test asks for")

func (p publisher) Publish(_ string, outputs ...*message.Message) error {
	if p.life.fault() == Unpublishable {
		return errRefused
	}
	p.life.publish(outputs)

	return nil
}

func (p publisher) Close() error { return nil }

// start makes a router as a service has it and runs it. stop returns when it has stopped.
func (l *life) start() (stop func() error, err error) {
	router, err := message.NewRouter(message.RouterConfig{}, l.service.Logger)
	if err != nil {
		return nil, err
	}

	router.AddMiddleware(l.outermost, middleware.Retry{Of: l.engine}.Middleware)
	router.AddMiddleware(l.service.Middlewares...)
	router.AddMiddleware(l.innermost)

	name, topic, from := l.service.HandlerName, l.service.Topic, &subscriber{out: l.out}
	if l.service.Handler != nil {
		router.AddHandler(name, topic, from, "outputs", publisher{l}, l.service.Handler)
	} else {
		router.AddConsumerHandler(name, topic, from, l.service.ConsumerHandler)
	}

	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()

	select {
	case <-router.Running():
	case err := <-ended:
		return nil, err
	}

	return func() error { return errors.Join(router.Close(), <-ended) }, nil
}

// outermost tells when the handler's goroutine is out of the retry middleware, and whether it will
// ever answer.
func (l *life) outermost(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		d := l.deliveryOf(msg)
		defer close(d.left)

		returned := false
		defer func() {
			if returned {
				return
			}
			if r := recover(); r != nil { // for the router
				panic(r)
			}
			close(d.lost)
		}()

		outputs, err := h(msg)
		returned = true

		return outputs, err
	}
}

// innermost counts the calls of the handler, and makes the faults happen.
func (l *life) innermost(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		d := l.deliveryOf(msg)
		fault := l.call(d)

		switch fault {
		case Shutdown:
			d.cancel()
		case Crash:
			defer func() {
				_ = recover()
				l.die(d)
				runtime.Goexit() // nothing that comes after it happens
			}()
		case Unpublishable:
		}

		outputs, err := h(msg)
		d.returns(err)
		l.returned(err)

		return outputs, err
	}
}

// deliveryOf finds the delivery of a message, also of one that a middleware has made anew.
func (l *life) deliveryOf(msg *message.Message) *delivery {
	if msg != nil {
		if d, ok := msg.Context().Value(deliveryKey{}).(*delivery); ok && d.engine == l.engine {
			return d
		}
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	return l.current
}
