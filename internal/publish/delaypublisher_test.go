package publish

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	wmdelay "github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/delay"
	"github.com/amqpretry/watermill-retry/config/publish"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
)

// idle is a publisher whose Close returns when its channel is closed.
type idle chan struct{}

func (idle) Publish(string, ...*message.Message) error { return nil }
func (i idle) Close() error                            { <-i; return nil }

var errStop = errors.New("stop")

const publishTimeout = 10 * time.Second

// newTestDelayPublisher returns a publisher to a queue of each topic's name on a scripted broker.
func newTestDelayPublisher(t *testing.T, b *fakebroker.Scripted) *DelayPublisher {
	t.Helper()
	return newDialingPublisher(t, b, b.Dial)
}

// newDialingPublisher is one that dials in a way of its own.
func newDialingPublisher(t *testing.T, b *fakebroker.Scripted, dial dialer) *DelayPublisher {
	t.Helper()
	b.OnDeclare = func(string) { <-time.After(time.Microsecond) } // so that time passes
	wrapped := make(idle)
	close(wrapped)
	settings := testSettings(dial)
	settings.Declare = true
	p, err := NewDelayPublisher(wrapped, settings,
		delay.Options{Ladder: config.Ladder{Levels: 2}, PublishTimeout: publishTimeout}, topology.Names{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })

	return p
}

func inMinutes(bodies ...string) []*message.Message {
	messages := named(bodies...)
	for _, msg := range messages {
		wmdelay.Message(msg, wmdelay.For(time.Minute))
	}

	return messages
}

// uuidsOf are the messages that an error names.
func uuidsOf(err *publish.Error) []string {
	var uuids []string
	for _, f := range err.Failed {
		uuids = append(uuids, f.UUID)
	}

	return uuids
}

// count is how many publishes carried a body.
func count(b *fakebroker.Scripted, body string) int {
	n := 0
	for _, u := range b.Publishes() {
		if u.Carries(body) {
			n++
		}
	}

	return n
}

// Only what was refused is published again, with pauses, and until PublishTimeout. The error names
// it.
func TestDelayPublisher_Refused(t *testing.T) {
	for name, takes := range map[string]time.Duration{"for a while": 4 * time.Second, "for ever": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, began := fakebroker.NewScripted(nil), time.Now()
				b.OnPublish = func(u *fakebroker.Publish) {
					if u.Carries("bad") && time.Since(began) < takes {
						u.Nack()
					} else {
						u.Ack()
					}
				}
				p := newTestDelayPublisher(t, b)
				err := p.Publish("q", inMinutes("good1", "bad1", "good2", "bad2")...)
				if takes < time.Hour {
					require.NoError(t, err)
				} else {
					failed := failedOf(t, err)
					assert.Equal(t, []string{"bad1", "bad2"}, uuidsOf(failed))
					assert.Equal(t, 4, failed.Of)
					require.ErrorIs(t, err, publish.ErrNacked)
					assert.InDelta(t, publishTimeout, time.Since(began), float64(publishTimeout/100+time.Millisecond))
					require.ErrorContains(t, err, "tried for 10s: the broker refused the message (nack)")
				}
				assert.Equal(t, 1, count(b, "good1"))
				assert.Equal(t, 1, count(b, "good2"))
				assert.Greater(t, count(b, "bad1"), 4)
				assert.Less(t, count(b, "bad1"), 20, "with pauses")
			})
		})
	}
}

// A returned message means that a part of the ladder is missing: all of it is declared again, at
// once, and only once for all that miss it.
func TestDelayPublisher_Returned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, began := fakebroker.NewScripted(nil), time.Now()
		var returns atomic.Int64
		b.OnPublish = func(u *fakebroker.Publish) {
			if u.Carries("lost") && returns.Add(1) <= 20 {
				u.Return()
			} else {
				u.Ack()
			}
		}
		p := newTestDelayPublisher(t, b)
		require.NoError(t, p.Publish("q", inMinutes("before")...))
		assert.Equal(t, 1, b.Declares("q.landing"))
		require.NoError(t, p.Publish("q", inMinutes(strings.Split(strings.Repeat("lost ", 20)+"good", " ")...)...))
		assert.Equal(t, 2, b.Declares("q.landing"))
		assert.Equal(t, 2, b.Declares(p.ladder.WaitQueue(0, 1)))
		assert.Equal(t, 1, count(b, "good"))
		assert.Less(t, time.Since(began), 50*time.Millisecond, "without a pause")
	})
}

// A message that the broker refuses for good is found, and named alone. The others of its call, and
// of calls beside it, are published twice at most.
func TestDelayPublisher_RefusedForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, began := fakebroker.NewScripted(nil), time.Now()
		b.OnPublish = answer("bad", func(u *fakebroker.Publish) {
			u.Refuse(amqp091.PreconditionFailed, "PRECONDITION_FAILED - message size 17 is larger than 16")
		}, ackAfter(time.Millisecond))
		p := newTestDelayPublisher(t, b)
		beside := make(chan error, 1)
		go func() { beside <- p.Publish("q", inMinutes("beside")...) }()
		err := p.Publish("q", inMinutes("good1", "bad1", "good2", "bad2", "good3")...)
		require.NoError(t, <-beside)
		for _, bad := range []string{"bad1", "bad2"} {
			require.ErrorContains(t, err, `message "`+bad+`" (not stored): the broker refuses it: `)
			assert.LessOrEqual(t, count(b, bad), 2)
		}
		require.ErrorAs(t, err, new(*publish.RefusedError))
		require.NotErrorIs(t, err, publish.ErrUnconfirmed)
		for _, good := range []string{"good1", "good2", "good3", "beside"} {
			assert.LessOrEqual(t, count(b, good), 2, good)
			assert.NotContains(t, err.Error(), good)
		}
		assert.Less(t, time.Since(began), time.Second)
		<-time.After(time.Second)
		assert.LessOrEqual(t, b.Open(), 2, "the channels that find it are closed")
	})
}

// An exchange to which the user may not write fails its own messages, and takes no others with it.
func TestDelayPublisher_OneLevelIsForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(nil)
		p := newTestDelayPublisher(t, b)
		b.OnPublish = func(u *fakebroker.Publish) {
			if u.Exchange == p.ladder.Level(1) {
				u.Refuse(amqp091.AccessRefused, "ACCESS_REFUSED - write access to exchange '"+u.Exchange+
					"' in vhost '/' refused for user 'guest'")
			} else {
				time.AfterFunc(time.Second, u.Ack)
			}
		}
		allowed := make(chan error, 1)
		short := message.NewMessage("short", []byte("short"))
		wmdelay.Message(short, wmdelay.For(5*time.Second))
		go func() { allowed <- p.Publish("q", short) }()
		synctest.Wait()
		err := p.Publish("q", inMinutes("minute")...)
		var access *topology.AccessError
		require.ErrorAs(t, err, &access)
		assert.Equal(t, p.ladder.Level(1), access.Name)
		assert.True(t, failedOf(t, err).Final)
		require.ErrorContains(t, err, "; remove the reason, and publish them again")
		require.NoError(t, <-allowed)
		assert.Equal(t, 1, count(b, "short"))
	})
}

// A permission may allow some routing keys of an exchange only. The broker's refusal of one takes
// down the channel that all share, and fails only its own message.
func TestDelayPublisher_OneKeyIsForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(nil)
		p := newTestDelayPublisher(t, b)
		b.OnPublish = answer("forbidden", func(u *fakebroker.Publish) {
			u.Refuse(amqp091.AccessRefused, "ACCESS_REFUSED - write access to topic 'x' in exchange '"+u.Exchange+
				"' in vhost '/' refused for user 'guest'")
		}, ackAfter(time.Second))
		allowed := make(chan error, 1)
		go func() { allowed <- p.Publish("q", inMinutes("allowed")...) }()
		<-time.After(500 * time.Millisecond) // it is published, and not confirmed yet
		require.Equal(t, 1, count(b, "allowed"))
		err := p.Publish("other", inMinutes("forbidden")...)
		assert.True(t, failedOf(t, err).Final)
		require.ErrorAs(t, err, new(*topology.AccessError))
		require.NoError(t, <-allowed)
	})
}

// The last real reason is in the error, also when the time is over while the next attempt is on its
// way.
func TestDelayPublisher_LastReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(nil)
		dials := 0
		p := newDialingPublisher(t, b, func(string, string) (net.Conn, error) {
			if dials++; dials == 1 {
				return nil, errStop
			}
			client, _ := net.Pipe() // it never answers
			return client, nil
		})
		err := p.Publish("q", inMinutes("a")...)
		require.ErrorContains(t, err, "tried for 10s: ")
		require.ErrorIs(t, err, errStop)
	})
}

// uncomparable is an error that == cannot compare.
type uncomparable []string

func (e uncomparable) Error() string { return strings.Join(e, " ") }

// The cause of a context can be any error.
func TestDelayPublisher_ContextEndsWithAnyError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted((*fakebroker.Publish).Nack)
		p := newTestDelayPublisher(t, b)
		ctx, cancel := context.WithCancelCause(t.Context())
		messages := inMinutes("refused")
		messages[0].SetContext(ctx)
		time.AfterFunc(time.Second, func() { cancel(uncomparable{"stop", "now"}) })
		var end uncomparable
		require.ErrorAs(t, p.Publish("q", messages...), &end)
	})
}

// A large message on a slow line is no reason to give up the connection, also when its context has
// ended.
func TestDelayPublisher_SlowLine(t *testing.T) {
	t.Parallel() // in real time: who waits for amqp091-go's lock would stop a fake clock

	b := fakebroker.NewScripted(nil)
	var dials atomic.Int64
	p := newDialingPublisher(t, b, func(network, address string) (net.Conn, error) {
		dials.Add(1)
		conn, err := b.Dial(network, address)

		return &slowConn{conn, 500 << 10}, err
	})
	require.NoError(t, p.Publish("q", inMinutes("first")...))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	large := inMinutes("large")
	large[0].Payload = make([]byte, 1<<20)
	large[0].SetContext(ctx)
	began := time.Now()
	if err := p.Publish("q", large...); err != nil { // it may be confirmed at once when it is written
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	assert.Greater(t, time.Since(began), 3*time.Second/2, "written in pieces")
	require.NoError(t, p.Publish("q", inMinutes("next")...))
	assert.EqualValues(t, 1, dials.Load(), "connections")
	assert.Equal(t, 1, count(b, "next"))
}

// slowConn takes so many bytes a second.
type slowConn struct {
	net.Conn
	perSecond int
}

func (c *slowConn) Write(p []byte) (int, error) {
	<-time.After(time.Second * time.Duration(len(p)) / time.Duration(c.perSecond))
	return c.Conn.Write(p)
}

// A due time in the metadata counts more than the default of the options.
func TestDelayPublisher_DefaultDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(nil)
		p := newTestDelayPublisher(t, b)
		defaults := forThoseWithout(func(wmdelay.DefaultDelayGeneratorParams) (wmdelay.Delay, error) {
			return wmdelay.For(time.Second), nil
		})
		var err error
		p.stamping, err = wmdelay.NewPublisher(stamped{p}, wmdelay.PublisherConfig{DefaultDelayGenerator: defaults})
		require.NoError(t, err)

		msg := message.NewMessage("until", []byte("until"))
		msg.Metadata.Set(wmdelay.DelayedUntilKey, time.Now().Add(time.Minute).UTC().Format(time.RFC3339))
		require.NoError(t, p.Publish("q", msg, message.NewMessage("none", []byte("none"))))
		for _, u := range b.Publishes() {
			level := map[bool]int{true: 1, false: 0}[u.Carries("until")]
			assert.Equal(t, p.ladder.Level(level), u.Exchange)
		}
		msg = message.NewMessage("malformed", nil)
		msg.Metadata.Set(wmdelay.DelayedUntilKey, "tomorrow")
		var malformed *delay.MetadataError
		require.ErrorAs(t, p.Publish("q", msg), &malformed)
		assert.Equal(t, "malformed", malformed.UUID)
	})
}

// What belongs to a target is declared again after half a minute, and the ladder after ten.
func TestDelayPublisher_DeclaresAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(nil)
		p := newTestDelayPublisher(t, b)
		for i, pause := range []time.Duration{0, targetAge - time.Second, 2 * time.Second, sharedAge} {
			<-time.After(pause)
			require.NoError(t, p.Publish("q", inMinutes("a")...))
			assert.Equal(t, []int{1, 1, 2, 3}[i], b.Declares("q.landing"))
			assert.Equal(t, []int{1, 1, 1, 2}[i], b.Declares(p.ladder.WaitQueue(0, 1)))
		}
		require.NoError(t, p.Publish("other", inMinutes("a")...))
		assert.Equal(t, 2, b.Declares(p.ladder.WaitQueue(0, 1)), "once for all targets")
	})
}

// A message whose context ends is given up alone, and the call does not wait for it.
func TestDelayPublisher_ContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, began := fakebroker.NewScripted(answer("silent", silent, ackAfter(3*time.Second))), time.Now()
		p := newTestDelayPublisher(t, b)
		ctx, cancel := context.WithCancelCause(t.Context())
		messages := inMinutes("silent", "slow")
		messages[0].SetContext(ctx)
		time.AfterFunc(time.Second, func() { cancel(errStop) })
		err := p.Publish("q", messages...)
		require.ErrorIs(t, err, errStop)
		assert.Equal(t, []string{"silent"}, uuidsOf(failedOf(t, err)))
		assert.InDelta(t, 3*time.Second, time.Since(began), float64(time.Millisecond))
		assert.Equal(t, 1, count(b, "slow"))
		b.OnPublish = nil
		require.NoError(t, p.Publish("q", messages[0]), "a context that had ended before ends nothing")
		assert.Equal(t, 2, count(b, "silent"))
	})
}

// Close waits for its timeout, and no longer for a wrapped publisher that hangs.
func TestDelayPublisher_CloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fakebroker.NewScripted(silent)
		p := newTestDelayPublisher(t, b)
		stuck := make(idle)
		defer close(stuck)
		p.wrapped = stuck
		hangs := make(chan error, 1)
		go func() { hangs <- p.Publish("q", inMinutes("a")...) }()
		synctest.Wait()
		began := time.Now()
		require.ErrorContains(t, p.Close(), "does not return within 5s")
		assert.LessOrEqual(t, time.Since(began), 12*time.Second)
		require.ErrorIs(t, <-hangs, connection.ErrClosed)
	})
}
