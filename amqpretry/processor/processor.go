package processor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/observe"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/retry"
)

// Processor retries the messages of services that this module is no part of, such as those in other
// languages. Their consumers only reject:
//
//	Q ─► consumer ─ nack, requeue=false ─► failed queue F ─► Processor ─ confirmed copy ─► Q.retry.30s ─ TTL ─► Q
//	                                                              └─────────────────────► Q.dlq
//
// The main queue Q dead-letters to the failed queue F. The processor consumes from F. It counts the
// failure, publishes a copy that waits and returns to Q by its name, or a dead letter to Q.dlq, and
// acknowledges when the broker has confirmed that. Body, message id and all other properties stay
// as they are. No handler runs in its process.
//
// F can be the failed queue of many main queues. The processor consumes from it once. A message
// belongs to the main queue that its routing key names, if the broker has set that key while it
// dead-lettered (x-dead-letter-routing-key), else to the queue of the newest x-death. A message of
// no main queue becomes a dead letter of the first one by name. A main queue that does not exist
// stops no other: its messages become dead letters of its own until it is there.
//
// Several processors may consume from the same queues.
type Processor struct {
	conf       Config
	options    Options
	patterns   []pattern
	management *httpapi.Client // nil without one
	engine     *engine.Engine
	shards     *shards
	turns      consumer.Turns
	observer   *observe.Observer
	declared   publish.Declared

	connections connection.Open

	opening chan struct{} // has room for the queues that are subscribed to at the same time
	changed chan struct{} // has something in it when the queues are to be looked for at once

	ctx    context.Context // ends when Close begins
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when all is over

	mu       sync.Mutex
	state    runState
	policies config.Policies
	found    []httpapi.Queue // when they were listed last
	asked    time.Time       // when that began
	listed   error           // why they could not be listed
	turned   time.Time
	running  map[string]*subscription
	refused  map[string]target // those of the present targets that cannot be processed
	logged   map[string]string // the last error of each queue, so that it is logged once
	began    bool              // all queues of the start have been consumed from, or cannot be
}

type runState int

const (
	notStarted runState = iota
	starting            // the queues were not listed yet
	started
	ended
)

// New validates conf and options, and reports all problems in one error. It does not connect.
func New(conf Config, options Options) (*Processor, error) {
	patterns, err := validate(conf, options)
	if err != nil {
		return nil, fmt.Errorf("invalid config of the processor:\n%w", err)
	}
	options.setDefaults()
	p := &Processor{
		conf: conf, options: options, patterns: patterns, policies: options.Policies,
		opening: make(chan struct{}, mostOpening), changed: make(chan struct{}, 1), done: make(chan struct{}),
		running: map[string]*subscription{}, refused: map[string]target{}, logged: map[string]string{},
	}
	if err := p.checkTargets(options.Policies); err != nil {
		return nil, fmt.Errorf("invalid config of the processor:\n%w", err)
	}
	if p.management, err = newManagement(conf); err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // it only helps to find the instance
	p.engine = &engine.Engine{Logger: options.Logger, Host: host, OnEvent: p.onEvent}
	p.observer = observe.NewObserver(p.settings("observer"), options.Logger)
	p.shards = &shards{open: p.openShard, size: queuesPerShard}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())

	return p, nil
}

// mostOpening queues are subscribed to at the same time.
const mostOpening = 32

// checkTargets reports what is wrong with the listed queues under policies.
func (p *Processor) checkTargets(policies config.Policies) error {
	var errs []error
	targets := resolve(p.conf.Queues, nil, nil, policies, p.options.Names)
	for i, pair := range p.conf.Queues {
		problem := ""
		if err := targets[pair.Name].main(pair.MainQueue).err; pair.Name == "" || pair.MainQueue == "" {
			problem = "has an empty name: wanted a failed queue and its main queue"
		} else if err != nil {
			problem = fmt.Sprintf("cannot process failed queue %q: %v", pair.Name, err)
		}
		if problem != "" {
			errs = append(errs, &config.FieldError{Path: fmt.Sprintf("Config.Queues[%d]", i), Problem: problem})
		}
	}

	return errors.Join(errs...)
}

// Run processes until ctx ends or Close is called. Then it waits until the copies in flight are
// confirmed, for CloseTimeout at the longest, and returns nil. While the broker or a queue is not
// available it tries again. It can be called once.
func (p *Processor) Run(ctx context.Context) error {
	p.mu.Lock()
	if p.state != notStarted {
		p.mu.Unlock()
		return errors.New("cannot run a processor twice")
	}
	p.state, p.turned = starting, time.Now()
	p.mu.Unlock()
	defer p.end()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(connection.ErrClosed) })()

	wait := p.settings("").Reconnect.Backoff()
	wait.Reset()
	for ctx.Err() == nil {
		pause := p.options.PollInterval
		if err := p.connect(ctx); err == nil {
			p.turn(ctx)
		} else if ctx.Err() == nil {
			pause = min(wait.NextBackOff(), pause)
			p.mu.Lock()
			p.listed = err
			p.mu.Unlock()
			p.options.Logger.Error("Cannot connect to RabbitMQ; trying again", err,
				watermill.LogFields{"wait_time": pause.String()})
		}
		p.mu.Lock()
		p.turned = time.Now()
		p.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-p.changed:
		case <-ctx.Done():
		}
	}

	return nil
}

// connect opens the first connection: queues that are opened side by side would each try.
func (p *Processor) connect(ctx context.Context) error {
	if p.shards.opened.Load() > 0 {
		return nil
	}
	_, err := p.shards.reserve(ctx, 0)

	return err
}

// end stops everything that Run has begun.
func (p *Processor) end() {
	defer close(p.done)

	p.mu.Lock()
	p.state = ended
	open := slices.Collect(maps.Values(p.running))
	p.mu.Unlock()

	for _, s := range open {
		s.cancel()
	}
	p.shards.close()
	for _, s := range open {
		<-s.done
	}
	p.observer.Close(time.Now().Add(time.Second))
}

// Close ends Run and returns when that has ended. It is safe to call it again.
func (p *Processor) Close() error {
	p.cancel(connection.ErrClosed)

	p.mu.Lock()
	idle := p.state == notStarted
	if idle {
		p.state = ended
	}
	p.mu.Unlock()
	if idle {
		p.end()
	}
	<-p.done

	return nil
}

// SetPolicies replaces the policies while the processor runs. Messages that wait come back after
// the delay that they were sent to. After an error the old policies stay.
func (p *Processor) SetPolicies(policies config.Policies) error {
	if err := errors.Join(policies.Validate(), p.checkTargets(policies)); err != nil {
		return err
	}
	p.mu.Lock()
	p.policies = policies
	p.mu.Unlock()
	p.look()

	return nil
}

// look makes Run look for the queues soon.
func (p *Processor) look() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// turn looks for the failed queues, and subscribes to those that are new and leaves those that are
// gone.
func (p *Processor) turn(ctx context.Context) {
	asked := time.Now()
	queues, err := p.list(ctx)
	if ctx.Err() != nil {
		return
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.listed = err
	if err == nil {
		p.found, p.asked, p.state = queues, asked, started
		delete(p.logged, "")
	} else {
		p.logOnce("", "Cannot list the queues, those that are known go on", err)
	}

	targets := resolve(p.conf.Queues, p.patterns, p.found, p.policies, p.options.Names)
	p.refused = map[string]target{}
	for name, s := range p.running {
		if t, wanted := targets[name]; !wanted || !t.sameAs(s.target) {
			s.cancel() // it leaves the map in its end, and comes back if it is to
		}
	}
	for name, t := range targets {
		switch {
		case t.err != nil:
			p.refused[name] = t
			p.logOnce(name, "Cannot process a failed queue", t.err)
		case p.running[name] == nil:
			p.start(t)
		}
	}
}

// logOnce logs an error of a queue, unless it is the last one that was logged of it. mu is held.
func (p *Processor) logOnce(queue, text string, err error) {
	if line := text + ": " + err.Error(); p.logged[queue] != line {
		p.logged[queue] = line
		p.options.Logger.Error(text, err, watermill.LogFields{"amqp_queue_name": queue})
	}
}

// list asks the management API for all queues, if a pattern needs them.
func (p *Processor) list(ctx context.Context) ([]httpapi.Queue, error) {
	if len(p.patterns) == 0 {
		return nil, nil
	}
	all, err := p.management.Queues(ctx)
	if err != nil {
		return nil, err
	}
	for _, q := range all {
		p.warnOfLimit(q)
	}

	return all, nil
}

// lookAgainAfter is how often queues are looked for at most because of messages of unknown queues.
const lookAgainAfter = 2 * time.Second

// isUnsure tells whether a queue that is no main queue of a failed queue may be one that is new: it
// matches a pattern, and the queues were not listed since a message of it arrived. If so, they are
// soon.
func (p *Processor) isUnsure(s *subscription, queue string, arrived time.Time) bool {
	if !slices.ContainsFunc(p.patterns, func(pattern pattern) bool {
		return pattern.failed == s.target.failed && pattern.isMain(httpapi.Queue{Name: queue})
	}) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	if s.ctx.Err() != nil { // the next subscription knows it
		return true
	}
	if p.asked.After(arrived) {
		return false
	}
	if time.Since(p.turned) > min(lookAgainAfter, p.options.PollInterval) {
		p.look()
	}

	return true
}

// safeLimit is a delivery limit that no failed queue reaches.
const safeLimit = 1000

// warnOfLimit tells of a failed queue that drops messages after some returns. From RabbitMQ 4.3 on,
// a message brings the count of its main queue with it, and one that has reached the limit there
// can be dropped at its first return here: by a shutdown, say.
func (p *Processor) warnOfLimit(q httpapi.Queue) {
	matches := slices.ContainsFunc(p.patterns, func(pattern pattern) bool {
		_, matches := pattern.main(q.Name)
		return matches || pattern.failed == q.Name
	})
	if !matches {
		return
	}
	arguments := amqp091.Table(maps.Clone(q.Arguments))
	if arguments == nil {
		arguments = amqp091.Table{}
	}
	arguments[amqp091.QueueTypeArg] = q.Type
	limit, drops := rabbitmq.DropLimit(arguments, "")
	if n, err := strconv.Atoi(limit); !drops || err == nil && n >= safeLimit {
		return
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	if key := "limit " + q.Name; p.logged[key] == "" {
		p.logged[key] = limit
		p.options.Logger.Info("The failed queue drops messages that are requeued too often; declare it with "+
			"x-delivery-limit 2147483647, or set that limit by a broker policy", watermill.LogFields{
			"amqp_queue_name": q.Name, "delivery_limit": limit,
		})
	}
}

// onEvent follows what the consumers do.
func (p *Processor) onEvent(e retry.Event) {
	p.follow(e.Kind, e.Queue)
	if p.options.OnEvent != nil {
		p.options.OnEvent(e)
	}
}

func (p *Processor) follow(kind retry.EventKind, queue string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	s := p.running[queue]
	switch {
	case kind == retry.EventConsuming && s != nil:
		s.consuming, s.began = true, true
		delete(p.logged, queue)
	case kind == retry.EventStoppedConsuming:
		if s != nil {
			s.consuming = false
		}
		if len(p.patterns) > 0 && p.state == started {
			p.look() // it may have been deleted
		}
	}
}
