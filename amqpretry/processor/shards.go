package processor

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/consumer"
	"github.com/amqpretry/watermill-retry/internal/publish"
)

// queuesPerShard is how many main queues share their connections. A failed queue takes a channel to
// consume, and each of its main queues one or two for the copies; a connection has 2047 by default.
const queuesPerShard = 500

// shard has three connections: one to consume from some of the queues; one for their copies, as a
// blocked publisher must stop no acknowledgement; and one to declare, as RabbitMQ can answer a
// declaration by closing the connection (541), which must stop no consumer.
type shard struct {
	consumer  *consumer.Consumer
	declarer  *connection.Connection
	declaring chan struct{} // has room for the main queues that are declared for at the same time
	forwarder *publish.Forwarder
	queues    int
	full      bool // the broker allows fewer channels
}

// shards are opened as queues need them.
type shards struct {
	open func(context.Context) (*shard, error)
	size int // main queues of a shard at most, unless one failed queue has more

	// mu is held while a shard connects. Events come meanwhile: no other lock is held when it is
	// taken.
	mu     sync.Mutex
	all    []*shard
	closed bool
	opened atomic.Int64 // how many there are
}

// reserve returns a shard with room for some more main queues. Each ends with release.
func (s *shards) reserve(ctx context.Context, queues int) (*shard, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, shard := range s.all {
		if (shard.queues == 0 || shard.queues+queues <= s.size) && !shard.full {
			shard.queues += queues
			return shard, nil
		}
	}
	if s.closed {
		return nil, connection.ErrClosed
	}
	opened, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	opened.queues += queues
	s.all = append(s.all, opened)
	s.opened.Add(1)

	return opened, nil
}

// release gives the room back. An error of the subscription tells whether the shard has channels
// left.
func (s *shards) release(shard *shard, queues int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	shard.queues -= queues
	if errors.Is(err, amqp091.ErrChannelMax) && shard.queues > 0 {
		shard.full = true
	}
}

// openShard connects.
func (p *Processor) openShard(ctx context.Context) (*shard, error) {
	c, err := consumer.New(ctx, consumer.Settings{
		Connection: p.settings("processor"), Logger: p.options.Logger, Engine: p.engine, Turns: &p.turns,
		Concurrency: 1, Prefetch: p.options.Prefetch, CloseTimeout: p.options.CloseTimeout,
	})
	if err != nil {
		return nil, err
	}

	return &shard{
		consumer:  c,
		declarer:  connection.New(p.settings("declarer"), p.options.Logger), // connects when it is needed
		declaring: make(chan struct{}, mostOpening),
		forwarder: publish.NewForwarder(publish.ForwarderSettings{
			Connection: p.settings("forwarder"), Logger: p.options.Logger, HoldWarning: p.options.HoldWarning,
			Redeclare: !p.options.AssumeTopology,
		}),
	}, nil
}

// close lets the copies in flight be confirmed, and closes all connections.
func (s *shards) close() {
	s.mu.Lock()
	s.closed = true
	all := s.all
	s.mu.Unlock()

	var wg sync.WaitGroup
	for _, shard := range all {
		wg.Add(1)
		go func() {
			defer wg.Done()
			shard.declarer.Close(time.Now().Add(time.Second)) // who declares waits no longer
			_ = shard.consumer.Close()
			shard.forwarder.Close(time.Now().Add(time.Second))
		}()
	}
	wg.Wait()
}
