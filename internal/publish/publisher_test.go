package publish

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/retry"
)

// plainMarshaler publishes the payload.
type plainMarshaler struct{}

func (plainMarshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{Body: msg.Payload}, nil
}

func (plainMarshaler) Unmarshal(amqp091.Delivery) (*message.Message, error) {
	return nil, errors.New("not asked for")
}

type dialer func(network, address string) (net.Conn, error)

func testSettings(dial dialer) Settings {
	return Settings{
		Connection: connection.Settings{URI: "amqp://guest:guest@broker/", AMQP: &amqp091.Config{Dial: dial},
			Emit: func(retry.Event) {}},
		Logger: watermill.NopLogger{}, CloseTimeout: 5 * time.Second, Marshaler: plainMarshaler{}, Target: queueTarget,
	}
}

func newTestPublisher(t *testing.T, dial dialer, options publish.Options) *Publisher {
	t.Helper()
	settings := testSettings(dial)
	settings.Options = options
	p := NewPublisher(settings)
	t.Cleanup(func() { _ = p.Close() })

	return p
}

func named(uuids ...string) []*message.Message {
	messages := make([]*message.Message, len(uuids))
	for i, uuid := range uuids {
		messages[i] = message.NewMessage(uuid, []byte(uuid))
	}

	return messages
}

func numbered(prefix string, n int) []*message.Message {
	uuids := make([]string, n)
	for i := range uuids {
		uuids[i] = fmt.Sprintf("%s-%d", prefix, i)
	}

	return named(uuids...)
}

// failedOf is the error of a call that names its messages.
func failedOf(t *testing.T, err error) *publish.Error {
	t.Helper()
	var failed *publish.Error
	require.ErrorAs(t, err, &failed)

	return failed
}

// A queue that never confirms, such as one without a majority, does not use up what others publish
// with: however many messages to it are given up.
func TestPublisher_QueueThatNeverConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(answer("silent", silent, (*fakebroker.Publish).Ack))
		p := newTestPublisher(t, b.Dial, publish.Options{})
		for range 20 {
			var calls sync.WaitGroup
			for range 500 {
				calls.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
					defer cancel()
					messages := named("silent")
					messages[0].SetContext(ctx)
					assert.ErrorIs(t, p.Publish("q", messages...), context.DeadlineExceeded)
				})
			}
			calls.Wait()
			began := time.Now()
			require.NoError(t, p.Publish("q", numbered("good", 2000)...))
			assert.Less(t, time.Since(began), time.Second)
		}
		synctest.Wait()
		assert.LessOrEqual(t, b.Open(), 2*4+1, "channels")
	})
}

// Any number of calls share four channels, and none waits for the answer to another.
func TestPublisher_Lanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &collected{}
		b := fakebroker.NewScripted(c.add)
		p := newTestPublisher(t, b.Dial, publish.Options{})
		var calls sync.WaitGroup
		for i := range 200 {
			synctest.Wait() // at once, some could choose a channel before the others have used it
			calls.Go(func() {
				fate, wanted := "good", error(nil)
				if i%2 == 1 {
					fate, wanted = "lost", publish.ErrUnroutable
				}
				assert.ErrorIs(t, p.Publish("q", numbered(fate, 1)...), wanted)
			})
		}
		synctest.Wait()
		waiting := c.take()
		require.Len(t, waiting, 200, "all are on their way")
		assert.Equal(t, 4, b.Open(), "channels")
		for _, u := range waiting {
			if u.Carries("lost") {
				u.Return()
			}
			u.Ack()
		}
		calls.Wait()
	})
}

// A call with more messages than a channel has room for waits for its own, and every return is told
// apart.
func TestPublisher_WindowOfReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(answer("good", (*fakebroker.Publish).Ack, (*fakebroker.Publish).Return))
		p := newTestPublisher(t, b.Dial, publish.Options{})
		messages := append(numbered("lost", 3000), numbered("good", 3)...)
		err := p.Publish("q", messages...)
		failed := failedOf(t, err)
		require.Len(t, failed.Failed, 3000)
		assert.Equal(t, 3003, failed.Of)
		for i, f := range failed.Failed {
			assert.Equal(t, i, f.Index)
			require.ErrorIs(t, f.Err, publish.ErrUnroutable)
		}
		assert.Less(t, len(err.Error()), 2000, "the text is bounded")
		require.ErrorContains(t, err, "and 2995 more")
	})
}

// collected keeps what is published until a test answers it.
type collected struct {
	mu      sync.Mutex
	waiting []*fakebroker.Publish
}

func (c *collected) add(u *fakebroker.Publish) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, u)
}

func (c *collected) take() []*fakebroker.Publish {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := c.waiting
	c.waiting = nil

	return waiting
}

// A channel that is given up because of somebody else's message is no reason to overtake one's own
// on another channel.
func TestPublisher_OrderOnARetiredLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c := fakebroker.NewScripted(nil), &collected{} // its version is none: a nack spoils the channel
		b.OnPublish = c.add
		p := newTestPublisher(t, b.Dial, publish.Options{})
		var calls sync.WaitGroup
		publishes := func(prefix string, n int) {
			calls.Go(func() { assert.NoError(t, p.Publish("q", numbered(prefix, n)...)) })
			synctest.Wait()
		}
		publishes("other", 1)
		publishes("mine", 1500)
		first := c.take()
		require.Len(t, first, 1+mostUnsettled, "as many as may have no answer")
		first[0].Nack() // the channel is spoilt
		synctest.Wait()
		first[1].Ack()
		synctest.Wait()
		require.Empty(t, c.take(), "mine wait for those on the first channel")
		b.OnPublish = nil
		for _, u := range first[2:] {
			u.Ack()
		}
		calls.Wait()
	})
}

// Calls that wait for a queue which does not answer, with more messages than fill a channel, leave
// room for those to other queues.
func TestPublisher_FullLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(answer("silent", silent, (*fakebroker.Publish).Ack))
		p := newTestPublisher(t, b.Dial, publish.Options{})
		var calls sync.WaitGroup
		for range 6 {
			calls.Go(func() {
				assert.ErrorIs(t, p.Publish("q", numbered("silent", 1500)...), publish.ErrUnconfirmed)
			})
			synctest.Wait()
		}
		began := time.Now()
		require.NoError(t, p.Publish("q", numbered("good", 3)...))
		assert.Less(t, time.Since(began), time.Second)
		calls.Wait()
	})
}

// A message whose own context ends does not end the time of others, and is bounded by it when they
// are done. Where the broker has refused one for good, no answer is taken for that to another.
func TestPublisher_ContextsOfOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(nil)
		b.OnPublish = func(u *fakebroker.Publish) {
			switch {
			case u.Carries("nacked"):
				u.Nack()
			case u.Carries("slow"):
				time.AfterFunc(600*time.Millisecond, u.Ack)
			case u.Carries("bad"):
				time.AfterFunc(500*time.Millisecond, func() { u.Refuse(406, "PRECONDITION_FAILED - bad") })
			default:
				u.Ack()
			}
		}
		p := newTestPublisher(t, b.Dial, publish.Options{})
		begin := func(ending int, uuids ...string) error {
			ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
			defer cancel()
			messages := named(uuids...)
			messages[ending].SetContext(ctx)

			return p.Publish("q", messages...)
		}
		began := time.Now()
		require.ErrorIs(t, begin(1, "good", "nacked"), context.DeadlineExceeded)
		assert.Equal(t, 700*time.Millisecond, time.Since(began))
		assert.Equal(t, []string{"bad"}, uuidsOf(failedOf(t, begin(0, "bad", "slow"))))
	})
}

// Each message says what has ended its own wait.
func TestPublisher_EndsOfOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted((*fakebroker.Publish).Nack)
		p := newTestPublisher(t, b.Dial, publish.Options{Timeout: 5 * time.Second})
		gone := errors.New("the caller has gone")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, gone)
		defer cancel()
		messages := named("short", "long")
		messages[0].SetContext(ctx)
		failed := failedOf(t, p.Publish("q", messages...))
		require.Len(t, failed.Failed, 2)
		const nack = "the broker refused the message (nack): is a queue full, or its node down?"
		require.ErrorIs(t, failed.Failed[0].Err, gone)
		require.EqualError(t, failed.Failed[0].Err, "the caller has gone: "+nack)
		require.ErrorIs(t, failed.Failed[1].Err, publish.ErrNacked)
		require.EqualError(t, failed.Failed[1].Err, "tried for 5s: "+nack)
	})
}

// The other messages of a channel that is closed over a bad one go together again.
func TestPublisher_ManyBesideABadOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(nil)
		b.OnPublish = answer("bad", func(u *fakebroker.Publish) { u.Refuse(406, "PRECONDITION_FAILED - bad") },
			ackAfter(20*time.Millisecond))
		p := newTestPublisher(t, b.Dial, publish.Options{Timeout: time.Hour})
		began := time.Now()
		err := p.Publish("q", append(named("bad"), numbered("good", 5000)...)...)
		require.Len(t, failedOf(t, err).Failed, 1)
		require.ErrorAs(t, err, new(*publish.RefusedError))
		assert.Less(t, time.Since(began), 1024*20*time.Millisecond+5*time.Second, "those of one channel, one by one")
		require.ErrorContains(t, p.Publish("q", nil), `cannot publish to topic "q", nothing was published: the message with index 0 of 1 is nil`)
	})
}

// A connection that has no room for further channels does with those that it has.
func TestPublisher_FewChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &collected{}
		b := fakebroker.NewScripted(c.add)
		settings := testSettings(b.Dial)
		settings.Connection.AMQP.ChannelMax = 1
		p := NewPublisher(settings)
		t.Cleanup(func() { _ = p.Close() })
		var calls sync.WaitGroup
		for range 50 {
			calls.Go(func() { assert.NoError(t, p.Publish("q", numbered("good", 1)...)) })
			synctest.Wait()
		}
		waiting := c.take()
		assert.Len(t, waiting, 50)
		for _, u := range waiting {
			u.Ack()
		}
		calls.Wait()
	})
}

// Nacks and a queue that does not answer, together, do not open one channel after the other.
func TestPublisher_ChannelsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(answer("full", (*fakebroker.Publish).Nack, silent))
		p := newTestPublisher(t, b.Dial, publish.Options{Timeout: 5 * time.Second})
		var calls sync.WaitGroup
		for range 300 {
			for _, kind := range []string{"full", "silent"} {
				calls.Go(func() { assert.Error(t, p.Publish("q", numbered(kind, 1)...)) })
			}
			<-time.After(10 * time.Millisecond)
			assert.LessOrEqual(t, b.Open(), 8+16+1, "channels")
		}
		calls.Wait()
	})
}

// A message that was being written when the connection was lost may be stored.
func TestPublisher_LostWhileWritten(t *testing.T) {
	t.Parallel() // in real time: who waits for amqp091-go's lock would stop a fake clock

	b := fakebroker.NewScripted(answer("small", (*fakebroker.Publish).Ack, silent))
	dials := 0
	p := newTestPublisher(t, func(network, address string) (net.Conn, error) {
		if dials++; dials > 1 {
			return nil, errors.New("nobody is there")
		}
		conn, err := b.Dial(network, address)
		return &breaksAt{conn, "large"}, err
	}, publish.Options{Timeout: time.Second})
	require.NoError(t, p.Publish("q", named("small")...))
	err := p.Publish("q", named("large")...)
	assert.True(t, failedOf(t, err).Failed[0].MayBeStored)
	require.ErrorIs(t, err, publish.ErrUnconfirmed)
}

// breaksAt is a connection that fails behind what contains a text, and has written that.
type breaksAt struct {
	net.Conn
	text string
}

func (c *breaksAt) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if strings.Contains(string(p), c.text) {
		_ = c.Close()
		return n, errors.New("reset by peer")
	}

	return n, err
}

func queueTarget(queue string) topology.Target { return topology.Target{Key: queue} }
