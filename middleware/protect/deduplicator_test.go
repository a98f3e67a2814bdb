package protect_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/retry"
)

func deduplicator(t require.TestingT, c protect.DeduplicatorConfig) *protect.Deduplicator {
	d, err := protect.NewDeduplicator(c)
	require.NoError(t, err)

	return d
}

// routed answers a message as the router does.
func routed(h message.HandlerFunc, msg *message.Message) error {
	err := call(h, msg)
	if err != nil {
		msg.Nack()
	} else {
		msg.Ack()
	}

	return err
}

func TestDuplicatesAreDropped(t *testing.T) {
	h := &handler{}
	guarded := deduplicator(t, protect.DeduplicatorConfig{}).Middleware(h.handle)
	for range 3 {
		require.NoError(t, routed(guarded, fresh()))
	}
	assert.Equal(t, 1, h.calls)
	require.NoError(t, routed(guarded, newMessage(newDelivery(twoRetries), "other")))
	assert.Equal(t, 2, h.calls)
	require.NoError(t, routed(guarded, message.NewMessage("uuid of other", nil)))
	assert.Equal(t, 2, h.calls, "whoever's they are")
}

// Two messages are two, however alike they are. Equal payloads make one only where that is asked
// for.
func TestEqualPayloads(t *testing.T) {
	for name, test := range map[string]struct {
		keys  wmmiddleware.MessageHasher
		calls int
	}{"default": {nil, 3}, "by UUID": {protect.KeyByUUID, 3}, "by payload": {
		wmmiddleware.NewMessageHasherSHA256(math.MaxInt64), 1}} {
		h := &handler{}
		guarded := deduplicator(t, protect.DeduplicatorConfig{KeyFactory: test.keys}).Middleware(h.handle)
		for _, uuid := range []string{"a", "b", "c", "a", "b"} {
			require.NoError(t, routed(guarded, message.NewMessage(uuid, []byte("payload"))))
		}
		assert.Equal(t, test.calls, h.calls, name)
	}
}

// A message of a publisher that gives no UUIDs has none before it has failed.
func TestNoUUID(t *testing.T) {
	h := &handler{}
	guarded := deduplicator(t, protect.DeduplicatorConfig{}).Middleware(h.handle)
	for range 2 {
		require.NoError(t, routed(guarded, message.NewMessage("", []byte("payload"))))
	}
	assert.Equal(t, 2, h.calls)
}

// onBoth runs a test with the memory of one process, and with an inbox that each guarded handler
// asks as another instance.
func onBoth(t *testing.T, test func(t *testing.T, guard message.HandlerMiddleware)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var current message.HandlerFunc
			guarded := deduplicator(t, protect.DeduplicatorConfig{}).
				Middleware(func(msg *message.Message) ([]*message.Message, error) { return current(msg) })
			test(t, func(h message.HandlerFunc) message.HandlerFunc {
				current = h

				return guarded
			})
		})
	})
	t.Run("inbox", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			test(t, func(h message.HandlerFunc) message.HandlerFunc { return instance(t, s, h) })
		})
	})
}

// What was not handled comes through, however that ended, at once and in each instance.
func TestWhatFailedIsNoDuplicate(t *testing.T) {
	for name, test := range map[string]struct {
		handler message.HandlerFunc
		after   func(*message.Message)
	}{
		"an error":                        {does(func(*message.Message) error { return errBoom }), nil},
		"a panic":                         {panics("boom"), nil},
		"a Goexit":                        {does(func(*message.Message) error { runtime.Goexit(); return nil }), nil},
		"postponed":                       {does(func(*message.Message) error { return retry.Postpone(1) }), nil},
		"acknowledged, then failed":       {does(func(msg *message.Message) error { msg.Ack(); return errBoom }), nil},
		"its outputs cannot be published": {(&handler{}).handle, func(msg *message.Message) { msg.Nack() }},
		"nacked by its handler":           {does(func(msg *message.Message) error { msg.Nack(); return nil }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, guard message.HandlerMiddleware) {
				msg, h := fresh(), &handler{}
				endsGoroutine(func() {
					defer func() { _ = recover() }()
					_, _ = guard(test.handler)(msg)
				})
				if test.after != nil {
					test.after(msg)
				}
				synctest.Wait()
				for range 2 {
					require.NoError(t, routed(guard(h.handle), fresh()))
					synctest.Wait()
				}
				assert.Equal(t, 1, h.calls)
			})
		})
	}
}

// Until it is known what becomes of a message, one with its key waits.
func TestDuplicateInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, h := deduplicator(t, protect.DeduplicatorConfig{Postpone: 7 * time.Second}), &handler{}
		var guarded message.HandlerFunc
		end := slow(func(slow message.HandlerFunc) message.HandlerFunc {
			guarded = d.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				if _, _ = h.handle(msg); h.calls > 1 {
					return nil, nil
				}

				return slow(msg)
			})

			return guarded
		}, fresh())
		err := call(guarded, fresh())
		require.ErrorIs(t, err, protect.ErrInFlight)
		assert.Equal(t, 7*time.Second, postponedFor(t, err))

		// Where it cannot wait, it is handled: better twice than never.
		require.NoError(t, call(guarded, newMessage(newDelivery(noRetries), "payload")))
		require.NoError(t, call(guarded, message.NewMessage("uuid of payload", nil)))
		assert.Equal(t, 3, h.calls)
		require.NoError(t, end(nil))
	})
}

func TestDuplicateWhileOutputsArePublished(t *testing.T) {
	h := &handler{}
	guarded := deduplicator(t, protect.DeduplicatorConfig{}).Middleware(h.handle)
	first := fresh()
	require.NoError(t, call(guarded, first))
	require.ErrorIs(t, call(guarded, fresh()), protect.ErrInFlight)
	first.Ack()
	require.NoError(t, call(guarded, fresh()))
	assert.Equal(t, 1, h.calls)
}

func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]protect.DeduplicatorConfig{
			"default": {}, "ten minutes": {Window: 10 * time.Minute},
		} {
			window := max(c.Window, time.Minute)
			h := &handler{}
			guarded := deduplicator(t, c).Middleware(h.handle)
			require.NoError(t, routed(guarded, fresh()))
			wait(window - 1)
			require.NoError(t, routed(guarded, fresh()))
			assert.Equal(t, 1, h.calls, name)
			wait(1)
			require.NoError(t, routed(guarded, fresh()))
			assert.Equal(t, 2, h.calls, name)
		}
	})
}

func TestMaxKeys(t *testing.T) {
	h := &handler{}
	guarded := deduplicator(t, protect.DeduplicatorConfig{MaxKeys: 2}).Middleware(h.handle)
	for _, payload := range []string{"a", "b", "a", "b", "c", "b", "c", "a"} { // c pushes a out
		require.NoError(t, routed(guarded, newMessage(newDelivery(twoRetries), payload)))
	}
	assert.Equal(t, 4, h.calls)
}

func TestKeys(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		h := &handler{}
		none := func(*message.Message) (string, error) { return "", nil }
		guarded := deduplicator(t, protect.DeduplicatorConfig{KeyFactory: none}).Middleware(h.handle)
		for range 3 {
			require.NoError(t, routed(guarded, fresh()))
		}
		assert.Equal(t, 3, h.calls)
	})
	t.Run("that cannot be made", func(t *testing.T) {
		h := &handler{}
		d := deduplicator(t, protect.DeduplicatorConfig{KeyFactory: wmmiddleware.NewMessageHasherFromMetadataField(
			"order_id")})
		require.ErrorContains(t, call(d.Middleware(h.handle), fresh()), "order_id")
		assert.Zero(t, h.calls)
	})
	t.Run("of Watermill", func(t *testing.T) {
		h := &handler{}
		guarded := deduplicator(t,
			protect.DeduplicatorConfig{KeyFactory: wmmiddleware.NewMessageHasherFromMetadataField("order_id")}).
			Middleware(h.handle)
		for _, id := range []string{"1", "2", "1"} {
			msg := fresh()
			msg.Metadata.Set("order_id", id)
			require.NoError(t, routed(guarded, msg))
		}
		assert.Equal(t, 2, h.calls)
	})
}

// Two handlers of the same messages do not take them away from each other, as with Watermill's.
func TestDeduplicatorOfEachHandler(t *testing.T) {
	ours, theirs := deduplicator(t, protect.DeduplicatorConfig{}), &wmmiddleware.Deduplicator{Timeout: time.Second}
	for name, test := range map[string]struct {
		middle message.HandlerMiddleware
		calls  int
	}{"ours": {ours.Middleware, 1}, "Watermill's": {theirs.Middleware, 0}} {
		first, second := &handler{}, &handler{}
		a, b := test.middle(first.handle), test.middle(second.handle)
		require.NoError(t, routed(a, fresh()))
		require.NoError(t, routed(b, fresh()))
		assert.Equal(t, 1, first.calls, name)
		assert.Equal(t, test.calls, second.calls, name)
	}
}

func TestReplaysAreNoDuplicates(t *testing.T) {
	h := &handler{}
	guarded := deduplicator(t, protect.DeduplicatorConfig{}).Middleware(h.handle)
	require.NoError(t, routed(guarded, fresh()))
	require.NoError(t, routed(guarded, replay()))
	assert.Equal(t, 2, h.calls)
}

// It belongs right inside of the retry middleware. In another place, too, it must not lose what
// fails around it, be it at once or as a retry. Duplicates do not come through.
func TestMiddlewareOutsideThatFails(t *testing.T) {
	onBoth(t, func(t *testing.T, guard message.HandlerMiddleware) {
		h, fails := &handler{}, true
		guarded := guard(h.handle)
		commit := retried(func(msg *message.Message) ([]*message.Message, error) {
			produced, err := guarded(msg)
			if fails && err == nil {
				return nil, errors.New("the transaction cannot be committed")
			}

			return produced, err
		})
		d := newDelivery(twoRetries)
		d.policy.Immediate = 1
		require.NoError(t, routed(commit, newMessage(d, "payload")))
		synctest.Wait()
		assert.Equal(t, 2, h.calls, "an immediate try comes through")
		assert.Equal(t, retry.ActionRetry, d.settled[0].Action)

		require.NoError(t, routed(commit, fresh()))
		synctest.Wait()
		assert.Equal(t, 2, h.calls, "a duplicate does not")

		fails = false
		again := newDelivery(twoRetries)
		again.state = written(d.copied)
		require.NoError(t, routed(commit, newMessage(again, "payload")))
		synctest.Wait()
		assert.Equal(t, 3, h.calls, "a retry does")
		require.NoError(t, routed(commit, fresh()))
		assert.Equal(t, 3, h.calls, "and no duplicate after it")
	})
}

// A message that was not handled when one with its key was need not be handled any more: whenever
// it has failed, be it in the same millisecond. What is written on a message has no finer time.
func TestRetryAfterDuplicateSucceeded(t *testing.T) {
	for name, failed := range map[string]time.Duration{"before": -time.Second, "in the same millisecond": 0,
		"later": time.Second} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, guard message.HandlerMiddleware) {
				h, first := &handler{err: errBoom}, newDelivery(twoRetries)
				guarded := retried(guard(h.handle))
				require.NoError(t, routed(guarded, newMessage(first, "payload")))
				h.err = nil
				require.NoError(t, routed(guarded, fresh()))
				synctest.Wait()
				require.Equal(t, 2, h.calls)

				retry := newDelivery(twoRetries)
				retry.state = written(first.copied)
				require.NotEmpty(t, retry.state.History)
				retry.state.History[0].At = time.Now().Add(failed).Truncate(time.Millisecond)
				require.NoError(t, routed(guarded, newMessage(retry, "payload")))
				assert.Equal(t, 2, h.calls)
			})
		})
	}
}

// An attempt that fails before it comes to the deduplicator does not take the mark away.
func TestMarkOutlivesOtherFailures(t *testing.T) {
	h, fails := &handler{}, "after"
	guarded := deduplicator(t, protect.DeduplicatorConfig{}).Middleware(h.handle)
	outside := retried(func(msg *message.Message) ([]*message.Message, error) {
		if fails == "before" {
			return nil, errBoom
		}
		produced, err := guarded(msg)
		if fails == "after" {
			return nil, errBoom
		}

		return produced, err
	})
	d := newDelivery(twoRetries)
	for _, fails = range []string{"after", "before", "never"} {
		require.NoError(t, routed(outside, newMessage(d, "payload")))
		next := newDelivery(twoRetries)
		next.state = written(d.copied)
		d = next
	}
	assert.Equal(t, 2, h.calls, "what came after its success has failed")
}

// written is the state that the copy of a message has when it comes back.
func written(s wire.State) wire.State {
	headers := map[string]any{}
	for key, value := range s.Headers("id") {
		headers[key] = value
	}
	read, _ := wire.Read(headers, wire.Reading{
		Queue: s.Queue, MaxRetries: 9, Death: "retry", IsRetryQueue: func(string, string) bool { return true },
	})

	return read
}

// Where two with the same key are handled at a time, the end of one says nothing of the other.
func TestFirstOfTwoFails(t *testing.T) {
	results := []chan error{make(chan error), make(chan error)}
	inside, calls := make(chan struct{}), 0
	guarded := deduplicator(t, protect.DeduplicatorConfig{}).Middleware(func(*message.Message) ([]*message.Message,
		error) {
		result := results[calls]
		calls++
		inside <- struct{}{}

		return nil, <-result
	})
	ended := make(chan error)
	for range results {
		msg := newMessage(newDelivery(noRetries), "payload")
		go func() { ended <- routed(guarded, msg) }()
		<-inside
	}
	results[0] <- errBoom
	require.Error(t, <-ended)
	require.ErrorIs(t, call(guarded, fresh()), protect.ErrInFlight)
	results[1] <- nil
	require.NoError(t, <-ended)
	require.NoError(t, call(guarded, fresh()))
	assert.Equal(t, 2, calls)
}

// Watermill's Duplicator wants the handler called twice, and gets it outside as well.
func TestDuplicatorOutside(t *testing.T) {
	for name, middle := range map[string]func(*protect.Deduplicator, message.HandlerFunc) message.HandlerFunc{
		"outside": func(d *protect.Deduplicator, h message.HandlerFunc) message.HandlerFunc {
			return wmmiddleware.Duplicator(d.Middleware(h))
		},
		"inside": func(d *protect.Deduplicator, h message.HandlerFunc) message.HandlerFunc {
			return d.Middleware(wmmiddleware.Duplicator(h))
		},
	} {
		h := &handler{}
		guarded := middle(deduplicator(t, protect.DeduplicatorConfig{}), h.handle)
		require.NoError(t, routed(guarded, fresh()), name)
		require.NoError(t, routed(guarded, fresh()), name)
		assert.Equal(t, 2, h.calls, name)
	}
}

// Messages that were not made by Watermill's constructor have no channels until they are answered.
func TestMessageWithoutChannels(t *testing.T) {
	h := &handler{}
	guarded := deduplicator(t, protect.DeduplicatorConfig{}).Middleware(h.handle)
	for range 2 {
		require.NoError(t, routed(guarded, &message.Message{UUID: "a"}))
	}
	assert.Equal(t, 2, h.calls)
}

func TestDeduplicatorConfig(t *testing.T) {
	_, err := protect.NewDeduplicator(protect.DeduplicatorConfig{Window: time.Microsecond, MaxKeys: -1, Postpone: -1})
	assert.Equal(t, []string{"DeduplicatorConfig.Window", "DeduplicatorConfig.MaxKeys", "DeduplicatorConfig.Postpone"},
		fields(t, err))
}

// Whatever happens to messages, in whatever order: nothing is lost, and what was handled within the
// window is not handled again.
func TestDeduplicatorLosesNothing(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		type flight struct {
			msg *message.Message
			key string
			end chan error
			out chan error
		}
		var flights []*flight
		published := map[string][]*message.Message{} // handler has succeeded, not yet answered
		handled, running := map[string]bool{}, map[string]int{}
		started := make(chan *flight, 1)
		type flightKey struct{}
		guarded := deduplicator(r, protect.DeduplicatorConfig{}).
			Middleware(func(msg *message.Message) ([]*message.Message, error) {
				f, _ := msg.Context().Value(flightKey{}).(*flight)
				started <- f

				return nil, <-f.end
			})
		key := rapid.SampledFrom([]string{"a", "b"})
		for range rapid.IntRange(1, 30).Draw(r, "steps") {
			switch rapid.IntRange(0, 2).Draw(r, "step") {
			case 0: // a message arrives
				f := &flight{key: key.Draw(r, "key"), end: make(chan error, 1), out: make(chan error, 1)}
				f.msg = newMessage(newDelivery(twoRetries), f.key)
				f.msg.SetContext(context.WithValue(f.msg.Context(), flightKey{}, f))
				go func() { f.out <- call(guarded, f.msg) }()
				busy := running[f.key] > 0 || len(published[f.key]) > 0
				select {
				case <-started:
					require.False(r, handled[f.key], "handled again")
					require.False(r, busy, "handled twice at a time")
					running[f.key]++
					flights = append(flights, f)
				case err := <-f.out:
					if err == nil {
						require.True(r, handled[f.key], "lost")
					} else {
						require.ErrorIs(r, err, protect.ErrInFlight)
						require.True(r, busy, "waits for nothing")
					}
				}
			case 1: // a handler ends
				if len(flights) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(flights)-1).Draw(r, "flight")
				f := flights[i]
				flights = append(flights[:i], flights[i+1:]...)
				fails := rapid.Bool().Draw(r, "fails")
				var err error
				if fails {
					err = errBoom
				}
				f.end <- err
				require.Equal(r, err, <-f.out)
				running[f.key]--
				if fails {
					f.msg.Ack() // the retry middleware has settled it
				} else {
					published[f.key] = append(published[f.key], f.msg)
				}
			case 2: // a router answers
				k := key.Draw(r, "key")
				if len(published[k]) == 0 {
					continue
				}
				if rapid.Bool().Draw(r, "published") {
					published[k][0].Ack()
					handled[k] = true
				} else {
					published[k][0].Nack()
				}
				published[k] = published[k][1:]
			}
		}
		for _, f := range flights {
			f.end <- nil
			require.NoError(r, <-f.out)
		}
	})
}

// Watermill's Deduplicator takes a retry for a duplicate; by attempt it does not, also with its
// default keys.
func TestByAttempt(t *testing.T) {
	for name, deduplicator := range map[string]wmmiddleware.Deduplicator{
		"default keys": {}, "keys": {KeyFactory: wmmiddleware.NewMessageHasherSHA256(1 << 20)},
	} {
		t.Run(name, func(t *testing.T) {
			h := &handler{}
			guarded := protect.ByAttempt(deduplicator)(h.handle)
			for range 2 {
				require.NoError(t, call(guarded, fresh()))
			}
			assert.Equal(t, 1, h.calls, "a duplicate")
			d := newDelivery(twoRetries)
			d.state.Count, d.state.Attempts = 1, 1
			require.NoError(t, call(guarded, newMessage(d, "payload")))
			assert.Equal(t, 2, h.calls, "a retry")
		})
	}
}

func TestKeyByAttempt(t *testing.T) {
	key := func(change func(*wire.State)) string {
		d := newDelivery(twoRetries)
		change(&d.state)
		k, err := protect.KeyByAttempt(wmmiddleware.NewMessageHasherSHA256(1 << 20))(newMessage(d, "payload"))
		require.NoError(t, err)

		return k
	}
	seen := map[string]string{}
	for name, change := range map[string]func(*wire.State){
		"fresh":                              func(*wire.State) {},
		"retry":                              func(s *wire.State) { s.Count, s.Attempts = 1, 1 },
		"second retry":                       func(s *wire.State) { s.Count, s.Attempts = 2, 2 },
		"immediate try of a third":           func(s *wire.State) { s.Count, s.Attempts, s.Tries = 2, 3, 1 },
		"replay":                             func(s *wire.State) { s.Count, s.Attempts, s.Replays = 0, 3, 1 },
		"replay of what no handler has seen": func(s *wire.State) { s.Replays = 1 },
	} {
		k := key(change)
		assert.Empty(t, seen[k], name)
		seen[k] = name
	}

	hasher := wmmiddleware.NewMessageHasherSHA256(1 << 20)
	plain, err := hasher(fresh())
	require.NoError(t, err)
	assert.Equal(t, plain, key(func(*wire.State) {}), "a fresh one has the key that publishers and others would give "+
		"it")
	other, err := protect.KeyByAttempt(hasher)(message.NewMessage("", []byte("payload")))
	require.NoError(t, err)
	assert.Equal(t, plain, other)

	_, err = protect.KeyByAttempt(func(*message.Message) (string, error) {
		return "", fmt.Errorf("no key: %w", errBoom)
	})(fresh())
	assert.ErrorIs(t, err, errBoom)
}
