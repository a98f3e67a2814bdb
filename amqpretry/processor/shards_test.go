package processor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/amqpretry/watermill-retry/amqpretry/management"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// More queues than one connection has room for get further ones, and a close leaves nothing behind.
func TestShards(t *testing.T) {
	broker := rabbit.New(t, brokertest.URI(t))
	policies := config.Policies{Default: config.Policy{Delays: []time.Duration{100 * time.Millisecond}}}
	conf := Config{URI: broker.URI}
	for i := range 5 {
		main := fmt.Sprintf("shards-%d-%s", i, watermill.NewShortUUID())
		broker.Declare(main+".failed", nil)
		broker.Declare(main, amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": main + ".failed"})
		plan, err := topology.New(main, policies.Default, topology.Names{})
		require.NoError(t, err)
		t.Cleanup(func() { broker.RemovePlan(plan) })
		conf.Queues = append(conf.Queues, Queue{main + ".failed", main})
	}
	channel := broker.Channel()
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())

	p, err := New(conf, Options{Policies: policies, Logger: watermill.NopLogger{}})
	require.NoError(t, err)
	p.shards.size = 2
	ended := make(chan error, 1)
	go func() { ended <- p.Run(context.WithoutCancel(t.Context())) }()
	await.Until(t, func() bool { return p.Health().Ready })
	assert.EqualValues(t, 3, p.shards.opened.Load())
	for _, q := range p.Queues() {
		assert.True(t, q.Consuming, q.Name)
		assert.NoError(t, q.Err)
	}
	for _, pair := range conf.Queues {
		broker.Publish(pair.MainQueue, amqp091.Publishing{MessageId: "m", Body: []byte("body")})
		d, ok, err := channel.Get(pair.MainQueue, false)
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, d.Nack(false, false))
		retried := drain.N(t, broker, pair.MainQueue, 1)[0]
		assert.Equal(t, "1", rabbit.Text(retried, "amqpretry-count"))
	}
	require.NoError(t, p.Close())
	require.NoError(t, <-ended)
	require.NoError(t, p.Close(), "again")
	require.Empty(t, p.running)
}

// A connection that has no more channels gets no more queues.
func TestFullShard(t *testing.T) {
	t.Parallel()
	one := &shard{queues: 3}
	s := &shards{all: []*shard{one}, size: 10, closed: true}
	s.release(one, 1, fmt.Errorf("cannot consume: %w", amqp091.ErrChannelMax))
	_, err := s.reserve(t.Context(), 1)
	require.Error(t, err)

	one = &shard{queues: 3}
	s = &shards{all: []*shard{one}, size: 10, closed: true}
	s.release(one, 1, errors.New("no permission"))
	found, err := s.reserve(t.Context(), 1)
	require.NoError(t, err)
	assert.Same(t, one, found)
}

// A failed queue with many main queues takes the room of as many, and gets a shard of its own if it
// needs one.
func TestShardRoom(t *testing.T) {
	t.Parallel()
	one, two := &shard{}, &shard{}
	s := &shards{all: []*shard{one, two}, size: 10, closed: true}
	for i, want := range []struct {
		queues int
		shard  *shard
	}{{4, one}, {6, one}, {1000, two}, {1, nil}} {
		found, err := s.reserve(t.Context(), want.queues)
		assert.Equal(t, want.shard == nil, err != nil, i)
		if want.shard != nil {
			assert.Same(t, want.shard, found, i)
		}
	}
	s.release(two, 1000, nil)
	assert.Equal(t, []int{10, 0}, []int{one.queues, two.queues})
}

// A processor that never ran can be closed.
func TestCloseBeforeRun(t *testing.T) {
	t.Parallel()
	p, err := New(Config{URI: "amqp://localhost:1", Queues: []Queue{{"f", "m"}}},
		Options{Logger: watermill.NopLogger{}})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.Error(t, p.Run(t.Context()))
	require.False(t, p.Health().Ready)
}

// Without a broker a processor waits for one, is not ready, says why, and can be ended.
func TestNoBroker(t *testing.T) {
	t.Parallel()
	p, err := New(Config{URI: "amqp://127.0.0.1:1", Queues: []Queue{{"f", "m"}}},
		Options{Logger: watermill.NopLogger{}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	await.Stays(t, 500*time.Millisecond, func() bool { return !p.Health().Ready }, "not ready")
	await.Until(t, func() bool {
		return strings.Contains(p.Health().Problems[0].Text, "connection refused")
	}, "it says why")
	cancel()
	require.NoError(t, await.Value(t, ended, "the processor ends"))
	require.NoError(t, p.Close())
}

// A message of a queue that may be a new main queue waits until the queues were listed after it
// arrived.
func TestIsUnsure(t *testing.T) {
	t.Parallel()
	p, err := New(Config{URI: "amqp://localhost:1", Match: []string{"failed=orders-*"},
		Management: management.API{URL: "http://localhost:1"}}, Options{Logger: watermill.NopLogger{}})
	require.NoError(t, err)
	defer func() { _ = p.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	s := &subscription{target: target{failed: "failed"}, ctx: ctx}
	other := &subscription{target: target{failed: "other"}, ctx: ctx}
	arrived := time.Now()

	assert.True(t, p.isUnsure(s, "orders-new", arrived))
	assert.Len(t, p.changed, 1, "they are listed soon")
	for _, name := range []string{"", "mails", "failed", "orders-"} {
		assert.False(t, p.isUnsure(s, name, arrived), name)
	}
	assert.False(t, p.isUnsure(other, "orders-new", arrived), "it is no pattern of that failed queue")

	p.asked = arrived.Add(-time.Second)
	assert.True(t, p.isUnsure(s, "orders-new", arrived), "they were listed before")
	p.asked = arrived.Add(time.Second)
	assert.False(t, p.isUnsure(s, "orders-new", arrived), "it is known to be none")
	cancel()
	assert.True(t, p.isUnsure(s, "orders-new", arrived), "the next subscription knows it")
}
