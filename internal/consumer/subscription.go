package consumer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/retry"
)

// subscription is one call of Subscribe. It lives through as many sessions as the broker makes
// necessary; its workers are the slots for messages that are handed out, and outlive sessions with
// the handlers they wait for.
type subscription struct {
	consumer *Consumer
	queue    Queue
	logger   watermill.LoggerAdapter

	out chan *message.Message

	began bool // the first session was there; written before run

	trouble trouble
	alone   bool             // on a connection of its own; of the session that is opening
	tried   *connection.Link // over which a session was opened last, or should have been
	active  moment           // when something was done with the queue last

	noMiddleware noMiddleware
	refused      atomic.Bool
	health       vitals

	// ctx has the values of the context of Subscribe, but not its end: handlers finish during a
	// close. abort ends it when the time to close is over.
	ctx   context.Context
	abort context.CancelCauseFunc
	// leave ends the subscription's claim on what is known of its queue. It is called when ctx
	// ends, and again before out is closed: whoever subscribes next declares anew, perhaps under
	// another policy.
	leave func()

	pace    *pace         // of the workers
	offers  chan *session // the session of the time, for a worker that has none
	workers sync.WaitGroup

	closing  chan struct{} // closed when no more messages may be handed out
	deadline time.Time     // of the close; read after closing
	once     sync.Once
	done     chan struct{} // closed when all is over
}

func newSubscription(ctx context.Context, c *Consumer, queue Queue) *subscription {
	inner, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	leave := sync.OnceFunc(c.queues.use(&queue).leave)
	context.AfterFunc(inner, leave)
	fields := watermill.LogFields{"amqp_queue_name": queue.Name}
	if queue.Topic != "" { // a failed queue may be that of many
		fields["topic"] = queue.Topic
	}

	return &subscription{
		consumer: c,
		queue:    queue,
		logger:   c.settings.Logger.With(fields),
		out:      make(chan *message.Message),
		ctx:      inner,
		abort:    abort,
		leave:    leave,
		pace:     newPace(c.settings.Concurrency),
		offers:   make(chan *session),
		closing:  make(chan struct{}),
		done:     make(chan struct{}),
	}
}

func (s *subscription) start(ctx context.Context, first *session, ended func()) {
	s.began = true
	stop := context.AfterFunc(ctx, func() { s.close(time.Now().Add(s.consumer.settings.CloseTimeout)) })

	for worker := range s.consumer.settings.Concurrency {
		s.workers.Go(func() { s.work(worker) })
	}

	go func() {
		defer close(s.done)
		defer ended()
		defer close(s.out)
		defer stop()

		s.run(first)
		s.workers.Wait()
		s.abort(connection.ErrClosed)
		s.leave()
		if s.queue.Ended != nil {
			s.queue.Ended()
		}
	}()
}

// close begins to close. It does not wait.
func (s *subscription) close(deadline time.Time) {
	s.once.Do(func() {
		s.deadline = deadline
		close(s.closing)

		timer := time.AfterFunc(time.Until(deadline), func() {
			s.logger.Info("Handlers did not finish within Options.CloseTimeout; requeueing their messages", nil)
			s.abort(connection.ErrClosed)
		})
		context.AfterFunc(s.ctx, func() { timer.Stop() })
	})
}

// refuse stops the subscription, whose messages would be lost.
func (s *subscription) refuse(err error) {
	if s.refused.Swap(true) {
		return
	}
	s.health.failed(err)
	s.logger.Error("Stopped the subscription, as a middleware would lose its messages", err, nil)
	s.close(time.Now().Add(s.consumer.settings.CloseTimeout))
}

func (s *subscription) isClosing() bool { return isClosed(s.closing) }

// run offers one session after the other to the workers.
func (s *subscription) run(session *session) {
	wait := s.consumer.settings.Connection.Reconnect.Backoff()
	wait.MaxInterval = min(wait.MaxInterval, 5*time.Second)
	wait.InitialInterval = min(wait.InitialInterval, wait.MaxInterval)
	wait.Reset()

	defer s.trouble.close()
	for began := time.Now(); ; began = time.Now() {
		if session != nil {
			s.logger.Info("Consuming", nil)
			s.health.begin(session)
			s.emit(retry.EventConsuming)
			s.serve(session)
			s.health.end()
			session.close()
			s.logger.Info("Stopped consuming", nil)
			s.emit(retry.EventStoppedConsuming)
		}
		if time.Since(began) > 10*time.Second { // it was not the opening that failed
			wait.Reset()
		}

		if s.isClosing() {
			return
		}
		s.pause(max(wait.NextBackOff(), s.trouble.lost(s, s.tried, began)))
		if s.isClosing() {
			return
		}

		var err error
		if session, err = s.open(); err != nil && !isClosing(err) {
			s.health.failed(err)
			s.logger.Error("Cannot consume; trying again", err, nil)
		}
	}
}

func (s *subscription) emit(kind retry.EventKind) {
	topics := []string{s.queue.Topic}
	if s.queue.isFailed() {
		topics = s.queue.mains()
	}
	for _, topic := range topics {
		s.consumer.settings.Engine.Emit(retry.Event{
			Kind: kind, Topic: topic, Queue: s.queue.Name, DeadLetters: s.queue.DeadLettersOf != "",
		})
	}
}

func (s *subscription) pause(wait time.Duration) {
	select {
	case <-time.After(wait):
	case <-s.closing:
	}
}

// open waits for the connection, declares and consumes. A close ends it, also in the middle of a
// call that the broker does not answer: that call ends with the connection.
func (s *subscription) open() (*session, error) {
	ctx, cancel := until(s.ctx, s.closing)
	defer cancel()

	link, err := s.trouble.link(ctx, s)
	s.tried, s.alone = link, s.trouble.isAlone()
	if err != nil {
		return nil, err
	}
	s.active.now() // declaring can cost the connection as well

	// There is never a second attempt beside the first: each would leave a channel at the broker
	// that does not answer it.
	result, _ := s.opening(link)
	defer s.reportNoAnswer("Cannot consume yet")()
	select {
	case r := <-result:
		return r.session, r.err
	case <-s.closing:
		s.discard(result)
		return nil, connection.ErrClosed
	}
}

// reportNoAnswer logs now and then that the broker does not answer, until it is stopped.
func (s *subscription) reportNoAnswer(text string) (stop func()) {
	over := make(chan struct{})
	go func() {
		warning := time.NewTicker(openTimeout)
		defer warning.Stop()
		for {
			select {
			case <-warning.C:
				err := s.consumer.noAnswer(s.queue.Name, openTimeout)
				s.health.failed(err)
				s.logger.Error(text, err, nil)
			case <-over:
				return
			}
		}
	}()

	return func() { close(over) }
}

// openFirst waits for the first session, for which somebody waits in turn, and so not for ever.
func (s *subscription) openFirst(ctx context.Context, link *connection.Link) (*session, error) {
	result, isDeclared := s.opening(link)
	bound := declareTimeout
	timeout := time.NewTimer(bound)
	defer timeout.Stop()

	var err error
	for err == nil {
		select {
		case r := <-result:
			return r.session, r.err
		case <-isDeclared:
			isDeclared, bound = nil, openTimeout
			timeout.Reset(bound)
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-timeout.C:
			err = s.consumer.noAnswer(s.queue.Name, bound)
		}
	}
	s.abort(err)
	s.close(time.Now().Add(closeGrace))
	s.discard(result)

	return nil, err
}

const (
	// declareTimeout is how long the broker may take to declare. RabbitMQ from 4.0 on takes a
	// minute to tell of a classic queue that its node is down.
	//
	// Upstream: a declaration of a classic queue whose node is down takes a minute; no issue known,
	// measured; RabbitMQ 4.0 and later; no test; remove when it fails at once again.
	declareTimeout = 2 * time.Minute
	// openTimeout is how long it may take then to begin to deliver.
	openTimeout = 30 * time.Second
)

// opened is the outcome of opening a session.
type opened struct {
	session *session
	err     error
}

// opening declares and consumes. It has a goroutine of its own, because it can take as long as the
// connection lives: RabbitMQ does not answer a consumer of a quorum queue that has no leader. So
// there is one at a time for each queue: each that was given up leaves a channel at the broker
// until then, and whoever tries again and again would leave one each time.
//
// Upstream: a quorum queue without a leader does not answer its consumers; no issue known,
// measured; RabbitMQ 3.10 to 4.3; TestLeaderless_OwnBroker; remove when it refuses them.
func (s *subscription) opening(link *connection.Link) (result chan opened, isDeclared chan struct{}) {
	result, isDeclared = make(chan opened, 1), make(chan struct{})
	used := s.consumer.queues.use(&s.queue)
	go func() {
		defer used.leave()

		select {
		case used.opening <- struct{}{}:
			defer func() { <-used.opening }()
		case <-s.ctx.Done():
			result <- opened{nil, context.Cause(s.ctx)}
			return
		}
		session, err := openSession(s, link, func() { close(isDeclared) })
		result <- opened{session, err}
	}()

	return result, isDeclared
}

// discard closes a session that nobody waits for any more, should it still open: its consumer would
// take messages away that nobody is given. The subscription is closing.
func (s *subscription) discard(result <-chan opened) {
	go func() {
		if r := <-result; r.session != nil {
			r.session.close()
		}
	}()
}

// declareAgain declares what was declared over an earlier connection. It goes on trying, and
// telling, until it succeeds or the session is over. What is missing all the same is declared when
// a copy comes back.
func (s *subscription) declareAgain(link *connection.Link, over <-chan struct{}) {
	for {
		err := s.consumer.declare(link, s.queue)
		if err == nil || !link.IsAlive() || s.isClosing() {
			return
		}
		s.logger.Error("Cannot redeclare the topology; consuming without it", err, nil)

		select {
		case <-time.After(declareAgainEvery):
		case <-over:
			return
		case <-s.closing:
			return
		}
	}
}

const declareAgainEvery = time.Minute

// serve offers a session to idle workers until it is over.
func (s *subscription) serve(session *session) {
	for {
		select {
		case s.offers <- session:
		case <-session.over:
			return
		case <-s.closing:
			return
		}
	}
}

// work handles one message at a time from the current session.
func (s *subscription) work(worker int) {
	for {
		select {
		case <-s.closing:
			return
		case session := <-s.offers:
			session.work(worker)
		}
	}
}
