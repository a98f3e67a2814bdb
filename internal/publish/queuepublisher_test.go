package publish

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
)

// newTestQueuePublisher returns a publisher, and what OnRefused is told.
func newTestQueuePublisher(t *testing.T, b *testBroker) (p *QueuePublisher, told func() []bool) {
	t.Helper()
	link, err := newTestForwarder(t, b).connection.TryLink(t.Context())
	require.NoError(t, err)
	p = NewQueuePublisher(link)
	var mu sync.Mutex
	var events []bool
	p.OnRefused = func(queue string, refused bool) {
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, "target", queue)
		events = append(events, refused)
	}

	return p, func() []bool {
		mu.Lock()
		defer mu.Unlock()
		return events
	}
}

// publishTest publishes a message to the queue "target".
func publishTest(t *testing.T, p *QueuePublisher) *Published {
	t.Helper()
	published, err := p.Publish(t.Context(), "", "target", amqp091.Publishing{Body: []byte("x")})
	require.NoError(t, err)

	return published
}

func TestQueuePublisher_Answers(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(*fakebroker.Publish)
		err    error
		takes  time.Duration // at the least
		told   []bool
	}{
		"confirmed": {(*fakebroker.Publish).Ack, nil, 0, nil},
		"returned":  {(*fakebroker.Publish).Return, ErrReturned, 0, nil},
		"refused":   {(*fakebroker.Publish).Nack, ErrRefused, refusedFor, []bool{true}},
		"silent":    {silent, errSilent, refusedFor, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestBroker(test.answer)
				p, told := newTestQueuePublisher(t, b)
				published := publishTest(t, p)
				began := time.Now()
				require.ErrorIs(t, published.Wait(t.Context(), t.Context()), test.err)
				assert.Equal(t, test.err == ErrRefused, published.Refused()) //nolint:errorlint // one of the table's
				assert.GreaterOrEqual(t, time.Since(began), test.takes)
				assert.Less(t, time.Since(began), test.takes+10*time.Second)
				assert.Equal(t, test.told, told())
			})
		})
	}
}

// A message that a queue refuses is published again until the queue takes it. The channel of the
// nack is not used again.
func TestQueuePublisher_RefusedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(nil)
		began := time.Now()
		b.OnPublish = func(u *fakebroker.Publish) {
			if time.Since(began) < 5*time.Second {
				u.Nack()
			} else {
				u.Ack()
			}
		}
		p, told := newTestQueuePublisher(t, b)
		published := publishTest(t, p)
		require.NoError(t, published.Wait(t.Context(), t.Context()))
		assert.False(t, published.Refused())
		assert.Equal(t, []bool{true, false}, told())
		assert.Greater(t, len(b.Publishes()), 5)
		assert.Less(t, len(b.Publishes()), 15)
		assert.Equal(t, len(b.Publishes()), b.Confirms(), "a channel for each")
	})
}

// When retry or ctx ends, a refused message is not published again, also by another Wait.
func TestQueuePublisher_RetryEnds(t *testing.T) {
	for name, wait := range map[string]func(u *Published, going, ends context.Context) error{
		"retry": func(u *Published, going, ends context.Context) error { return u.Wait(going, ends) },
		"ctx":   func(u *Published, going, ends context.Context) error { return u.Wait(ends, going) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestBroker((*fakebroker.Publish).Nack)
				p, _ := newTestQueuePublisher(t, b)
				published := publishTest(t, p)
				began := time.Now()
				ends, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				require.ErrorIs(t, wait(published, t.Context(), ends), context.DeadlineExceeded)
				assert.Equal(t, 2*time.Second, time.Since(began), "at once")
				assert.True(t, published.Refused())
				publishes := len(b.Publishes())

				require.ErrorIs(t, published.Wait(ends, ends), context.DeadlineExceeded)
				assert.True(t, published.Refused())
				assert.Len(t, b.Publishes(), publishes)
			})
		})
	}
}

// A return has no id here: it may be of any message to its address before the channel ends.
func TestQueuePublisher_AfterAReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(silent)
		p, _ := newTestQueuePublisher(t, b)
		published := []*Published{publishTest(t, p), publishTest(t, p), publishTest(t, p)}
		other, err := p.Publish(t.Context(), "", "other", amqp091.Publishing{})
		require.NoError(t, err)
		synctest.Wait()
		b.Publishes()[0].Ack()
		require.NoError(t, published[0].Wait(t.Context(), t.Context()))
		b.Publishes()[1].Return()
		b.Publishes()[2].Ack()
		b.Publishes()[3].Ack()
		require.NoError(t, other.Wait(t.Context(), t.Context()))
		require.ErrorIs(t, published[1].Wait(t.Context(), t.Context()), ErrReturned)
		require.ErrorIs(t, published[2].Wait(t.Context(), t.Context()), ErrReturned)
	})
}

// Nothing is taken for confirmed when the connection or the channel ends before the answer.
func TestQueuePublisher_Lost(t *testing.T) {
	for name, end := range map[string]func(*QueuePublisher){
		"connection": func(p *QueuePublisher) { p.link.Abandon() },
		"channel":    func(p *QueuePublisher) { _ = p.sender.channels[""][0].Close() }, // without an error
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestBroker(silent)
				p, _ := newTestQueuePublisher(t, b)
				published := publishTest(t, p)
				synctest.Wait()
				end(p)
				require.ErrorIs(t, published.Wait(t.Context(), t.Context()), errLost)
				assert.False(t, published.Refused(), "the broker may have it")
			})
		})
	}
}

// What is held back is written together, when it is flushed, and before a publish waits for a
// channel.
func TestQueuePublisher_Hold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker((*fakebroker.Publish).Ack)
		p, _ := newTestQueuePublisher(t, b)
		p.Hold() // there is no channel yet: to open one takes an answer
		published := []*Published{publishTest(t, p)}
		synctest.Wait()
		require.Len(t, b.Publishes(), 1)

		p.Hold()
		p.Hold()
		published = append(published, publishTest(t, p), publishTest(t, p))
		synctest.Wait()
		require.Len(t, b.Publishes(), 1, "held back")
		p.Flush()
		synctest.Wait()
		require.Len(t, b.Publishes(), 3)
		p.Flush()
		published = append(published, publishTest(t, p))
		for _, published := range published {
			require.NoError(t, published.Wait(t.Context(), t.Context()))
		}
	})
}
