package protect_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/retry"
)

// server is a store that can be down, in either way: with an error, or without an answer.
type server struct {
	*store.Memory

	mu    sync.Mutex
	down  error
	hangs bool
	calls map[string]int
}

var errDown = errors.New("connection refused")

func newServer(t require.TestingT) *server {
	m, err := store.NewMemory(store.MemoryConfig{})
	require.NoError(t, err)

	return &server{Memory: m, calls: map[string]int{}}
}

func (s *server) set(down error, hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.hangs = down, hangs
}

func (s *server) ask(ctx context.Context, op string) error {
	s.mu.Lock()
	s.calls[op]++
	down, hangs := s.down, s.hangs
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()

		return ctx.Err()
	}

	return down
}

func (s *server) Begin(ctx context.Context, handler, key string, lease time.Duration) (store.Claim, error) {
	if err := s.ask(ctx, "begin"); err != nil {
		return nil, err
	}
	claim, err := s.Memory.Begin(ctx, handler, key, lease)

	return serverClaim{claim, s}, err
}

func (s *server) Update(ctx context.Context, name string, keep time.Duration,
	change func(time.Time, []byte) ([]byte, error)) error {
	if err := s.ask(ctx, "update"); err != nil {
		return err
	}

	return s.Memory.Update(ctx, name, keep, change)
}

type serverClaim struct {
	store.Claim
	server *server
}

func (c serverClaim) Renew(ctx context.Context, lease time.Duration) error {
	if err := c.server.ask(ctx, "renew"); err != nil {
		return err
	}

	return c.Claim.Renew(ctx, lease)
}

func (c serverClaim) Commit(ctx context.Context) error {
	if err := c.server.ask(ctx, "commit"); err != nil {
		return err
	}

	return c.Claim.Commit(ctx)
}

func (c serverClaim) Release(ctx context.Context) error {
	if err := c.server.ask(ctx, "release"); err != nil {
		return err
	}

	return c.Claim.Release(ctx)
}

// told keeps the errors that no message can carry.
type told struct {
	mu   sync.Mutex
	errs []error
}

func (o *told) onError(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.errs = append(o.errs, err)
}

func (o *told) tell(c *protect.DeduplicatorConfig) { c.OnError = o.onError }

func (o *told) ops(t *testing.T) (ops []string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, err := range o.errs {
		var e *protect.StoreError
		require.ErrorAs(t, err, &e)
		assert.NotEmpty(t, e.Handler)
		ops = append(ops, e.Op)
	}

	return ops
}

// instance is a service with an inbox.
func instance(t require.TestingT, inbox store.Inbox, h message.HandlerFunc, change ...func(
	*protect.DeduplicatorConfig)) message.HandlerFunc {
	c := protect.DeduplicatorConfig{Inbox: inbox}
	for _, f := range change {
		f(&c)
	}

	return deduplicator(t, c).Middleware(h)
}

// Two instances, and the next process, know what was handled.
func TestInboxIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		for range 3 {
			guarded := instance(t, s, h.handle)
			for range 2 {
				require.NoError(t, routed(guarded, fresh()))
				synctest.Wait()
			}
		}
		assert.Equal(t, 1, h.calls)
		wait(time.Hour)
		require.NoError(t, routed(instance(t, s, h.handle), fresh()))
		assert.Equal(t, 2, h.calls)
	})
}

// Another service with the same message in a queue of its own, and one with a name, are others.
func TestInboxNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		named := func(name string) func(*protect.DeduplicatorConfig) {
			return func(c *protect.DeduplicatorConfig) { c.Name = name }
		}
		for _, name := range []string{"", "a", "b", "a", ""} {
			require.NoError(t, routed(instance(t, s, h.handle, named(name)), fresh()))
			synctest.Wait()
		}
		assert.Equal(t, 3, h.calls)
		require.NoError(t, routed(instance(t, s, h.handle), message.NewMessage("uuid of payload", nil)))
		assert.Equal(t, 4, h.calls, "no queue, no name of a handler")
	})
}

// Messages that were not made by Watermill's constructor have no channels until they are answered.
// Without outputs that does not matter.
func TestInboxMessageWithoutChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for outputs, want := range []int{1, 2} {
			s, calls := newServer(t), 0
			for range 2 {
				msg := &message.Message{UUID: "a"}
				msg.SetContext(t.Context())
				require.NoError(t, routed(instance(t, s, func(*message.Message) ([]*message.Message, error) {
					calls++

					return make([]*message.Message, outputs), nil
				}), msg))
				synctest.Wait()
			}
			assert.Equal(t, want, calls)
		}
	})
}

// A message is in flight until its router has answered, in each instance.
func TestInboxInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		first := fresh()
		guarded := instance(t, s, h.handle)
		require.NoError(t, call(guarded, first))
		wait(10 * time.Minute) // outputs may take long
		require.ErrorIs(t, call(guarded, fresh()), protect.ErrInFlight, "in the same one")
		err := call(instance(t, s, h.handle), fresh())
		require.ErrorIs(t, err, protect.ErrInFlight)
		assert.Equal(t, time.Second, postponedFor(t, err))
		first.Ack()
		synctest.Wait()
		require.NoError(t, call(instance(t, s, h.handle), fresh()))
		assert.Equal(t, 1, h.calls)
	})
}

// A handler that is wrapped twice is called once, and not shut out by its own claim. Deliveries
// exclude each other.
func TestInboxTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h, end := newServer(t), &handler{err: errBoom}, make(chan struct{})
		d := deduplicator(t, protect.DeduplicatorConfig{Inbox: s})
		guarded := d.Middleware(d.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			<-end

			return h.handle(msg)
		}))
		other := func() error { return routed(guarded, fresh()) }
		msg, ended := fresh(), make(chan error)
		begin := func() { go func() { ended <- call(guarded, msg) }() }
		begin()
		synctest.Wait()
		require.ErrorIs(t, other(), protect.ErrInFlight)
		end <- struct{}{}
		require.ErrorIs(t, <-ended, errBoom)

		h.err = nil
		for range 2 { // the second is Duplicator's
			begin()
			synctest.Wait()
			require.ErrorIs(t, other(), protect.ErrInFlight)
			end <- struct{}{}
			require.NoError(t, <-ended)
			require.ErrorIs(t, other(), protect.ErrInFlight, "until it is acknowledged")
		}
		msg.Ack()
		synctest.Wait()
		require.NoError(t, other())
		assert.Equal(t, 3, h.calls)
	})
}

// A claim that another delivery has taken over is that one's.
func TestInboxTwiceLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		d := deduplicator(t, protect.DeduplicatorConfig{Inbox: s})
		inner := d.Middleware(h.handle)
		begin := func() (end func(error) error) {
			return slow(func(slow message.HandlerFunc) message.HandlerFunc {
				return d.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					_, _ = slow(msg)

					return inner(msg)
				})
			}, fresh())
		}
		endFirst := begin()
		s.set(errDown, false)
		wait(2*time.Minute + time.Second) // nothing is renewed
		s.set(nil, false)
		endSecond := begin()
		require.ErrorIs(t, endFirst(nil), protect.ErrInFlight)
		require.NoError(t, endSecond(nil))
		assert.Equal(t, 1, h.calls)
	})
}

// A handler that runs longer than its lease keeps its claim.
func TestInboxLongHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, o := newServer(t), &told{}
		slow := func(*message.Message) ([]*message.Message, error) { wait(time.Hour); return nil, nil }
		ended := make(chan error)
		first := fresh()
		guarded := instance(t, s, slow, o.tell)
		go func() { ended <- routed(guarded, first) }()
		h := &handler{}
		for range 59 {
			wait(time.Minute)
			require.ErrorIs(t, routed(instance(t, s, h.handle), fresh()), protect.ErrInFlight)
		}
		require.NoError(t, <-ended)
		synctest.Wait()
		require.NoError(t, routed(instance(t, s, h.handle), fresh()))
		assert.Zero(t, h.calls)
		assert.Empty(t, o.errs)
	})
}

// The message of a process that has died is handled after its lease. Postponed, it comes back no
// later than that.
func TestInboxTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		claim, err := s.Memory.Begin(t.Context(), "/orders/", "uuid of payload", 1500*time.Millisecond)
		require.NoError(t, err)
		require.Equal(t, store.New, claim.State())
		h := &handler{}
		guarded := instance(t, s, h.handle)
		err = routed(guarded, fresh())
		require.ErrorIs(t, err, protect.ErrInFlight)
		assert.Equal(t, time.Second, postponedFor(t, err))
		wait(time.Second)
		assert.Equal(t, 500*time.Millisecond, postponedFor(t, routed(guarded, fresh())))
		wait(500 * time.Millisecond)
		require.NoError(t, routed(guarded, fresh()))
		assert.Equal(t, 1, h.calls)

		// Where it cannot be postponed, it waits in place.
		_, err = s.Memory.Begin(t.Context(), "/orders/", "uuid of a", 1500*time.Millisecond)
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, routed(guarded, newMessage(newDelivery(noRetries), "a")))
		assert.Equal(t, 1500*time.Millisecond, time.Since(began))
		assert.Equal(t, 2, h.calls)
	})
}

// A store that does not answer costs no attempt, and no effect happens without it.
func TestInboxDown(t *testing.T) {
	for name, hangs := range map[string]bool{"error": false, "silence": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, h, o := newServer(t), &handler{}, &told{}
				s.set(errDown, hangs)
				guarded := instance(t, s, h.handle, o.tell)
				began := time.Now()
				err := routed(guarded, fresh())
				assert.Equal(t, time.Second, postponedFor(t, err))
				var e *protect.StoreError
				require.ErrorAs(t, err, &e)
				assert.Equal(t, "claim", e.Op)
				assert.Equal(t, "/orders/", e.Handler)
				assert.Equal(t, "uuid of payload", e.Key)
				if hangs {
					assert.Equal(t, 5*time.Second, time.Since(began))
				} else {
					require.ErrorIs(t, err, errDown)
				}
				assert.Equal(t, []string{"claim"}, o.ops(t))
				verdict, _ := first(t, guarded)
				assert.Equal(t, retry.ActionPostpone, verdict.Action)
				assert.Zero(t, verdict.Count)

				// Where it cannot be postponed, it waits in place, and ends with its context.
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				msg := message.NewMessage("a", nil)
				msg.SetContext(ctx)
				require.ErrorIs(t, routed(guarded, msg), context.DeadlineExceeded)
				assert.Zero(t, h.calls)

				s.set(nil, false)
				require.NoError(t, routed(guarded, fresh()))
				assert.Equal(t, 1, h.calls)
			})
		})
	}
}

// A claim is not waited for until its lease has run out.
func TestInboxSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		s.set(nil, true)
		guarded := instance(t, s, h.handle, func(c *protect.DeduplicatorConfig) { c.Timeout = time.Hour })
		began := time.Now()
		require.ErrorIs(t, call(guarded, fresh()), context.DeadlineExceeded)
		assert.Equal(t, time.Minute/2, time.Since(began))
	})
}

// An outage while the handler runs, no longer than the lease, goes unnoticed by others. That of the
// commit as well.
func TestInboxShortOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, o := newServer(t), &told{}
		h := func(*message.Message) ([]*message.Message, error) {
			wait(10 * time.Second)
			s.set(errDown, false)
			wait(25 * time.Second)
			s.set(nil, false)
			wait(10 * time.Second)
			s.set(nil, true)
			go func() { wait(20 * time.Second); s.set(nil, false) }()

			return nil, nil
		}
		require.NoError(t, routed(instance(t, s, h, o.tell), fresh()))
		wait(time.Minute)
		assert.Equal(t, []string{"renew"}, o.ops(t))
		second := &handler{}
		require.NoError(t, routed(instance(t, s, second.handle), fresh()))
		assert.Zero(t, second.calls)
	})
}

// A claim that was lost is told, and takes nothing away from the one who has it now.
func TestInboxLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, o := newServer(t), &told{}
		resume := make(chan struct{})
		h := func(*message.Message) ([]*message.Message, error) {
			s.set(errDown, false)
			wait(2*time.Minute + time.Second) // between two renewals
			s.set(nil, false)
			close(resume)
			wait(time.Minute)

			return nil, nil
		}
		ended := make(chan error)
		guarded := instance(t, s, h, o.tell)
		go func() { ended <- routed(guarded, fresh()) }()
		<-resume
		second := fresh()
		other := &handler{}
		require.NoError(t, call(instance(t, s, other.handle), second))
		require.Equal(t, 1, other.calls)
		require.NoError(t, <-ended)
		synctest.Wait()
		require.ErrorIs(t, call(instance(t, s, other.handle), fresh()), protect.ErrInFlight)
		second.Ack()
		synctest.Wait()
		require.NoError(t, call(instance(t, s, other.handle), fresh()))
		assert.Equal(t, 1, other.calls)
		last := len(o.errs) - 1
		require.ErrorIs(t, o.errs[last], store.ErrLost)
		assert.NotErrorIs(t, o.errs[last-1], store.ErrLost, "it is told once")
	})
}

// A commit that the store never heard is told, and Close says so.
func TestInboxNeverCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, o, h := newServer(t), &told{}, &handler{}
		d := deduplicator(t, protect.DeduplicatorConfig{Inbox: s, OnError: o.onError})
		require.NoError(t, d.Close())
		guarded := d.Middleware(h.handle)
		msg := fresh()
		require.NoError(t, call(guarded, msg))
		s.set(errDown, false)
		msg.Ack()
		require.NoError(t, d.Close(), "in the end there is nothing to wait for")
		assert.Equal(t, []string{"commit"}, o.ops(t))
		s.set(nil, false)
		wait(time.Minute)
		require.NoError(t, routed(guarded, fresh()))
		assert.Equal(t, 2, h.calls)

		require.NoError(t, call(guarded, newMessage(newDelivery(twoRetries), "never answered")))
		began := time.Now()
		require.ErrorContains(t, d.Close(), "1 handled")
		assert.Equal(t, time.Minute, time.Since(began))
	})
}

// Close waits for the store.
func TestInboxClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		d := deduplicator(t, protect.DeduplicatorConfig{Inbox: s})
		s.set(nil, false)
		msg := fresh()
		require.NoError(t, call(d.Middleware(h.handle), msg))
		s.set(nil, true)
		msg.Ack()
		go func() { wait(7 * time.Second); s.set(nil, false) }()
		require.NoError(t, d.Close())
		require.NoError(t, call(instance(t, s, h.handle), fresh()))
		assert.Equal(t, 1, h.calls)
	})
}

// A message that nobody answers does not keep its claim for ever.
func TestInboxNeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		require.NoError(t, call(instance(t, s, h.handle), fresh()))
		wait(2 * time.Hour)
		require.NoError(t, routed(instance(t, s, h.handle), fresh()))
		assert.Equal(t, 2, h.calls)
	})
}

// A replay of a message that was handled is acknowledged, unless it is forced.
func TestInboxReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		forced := func(c *protect.DeduplicatorConfig) { c.HandleReplays = true }
		require.NoError(t, routed(instance(t, s, h.handle), replay()))
		assert.Equal(t, 1, h.calls, "it was not handled")
		synctest.Wait()
		require.NoError(t, routed(instance(t, s, h.handle), replay()))
		assert.Equal(t, 1, h.calls)
		require.NoError(t, routed(instance(t, s, h.handle, forced), fresh()))
		assert.Equal(t, 1, h.calls)
		require.NoError(t, routed(instance(t, s, h.handle, forced), replay()))
		assert.Equal(t, 2, h.calls)
	})
}

// Watermill's Duplicator wants the handler called twice, and gets it on either side.
func TestInboxDuplicator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		guarded := instance(t, s, h.handle)
		twice := func(msg *message.Message) error {
			_ = call(guarded, msg)

			return routed(guarded, msg)
		}
		require.NoError(t, twice(fresh()))
		synctest.Wait()
		assert.Equal(t, 2, h.calls)
		require.NoError(t, twice(fresh()))
		assert.Equal(t, 2, h.calls)
		// If the second call fails, the message has failed.
		msg := newMessage(newDelivery(twoRetries), "other")
		require.NoError(t, call(guarded, msg))
		h.err = errBoom
		require.Error(t, routed(guarded, msg))
		h.err, h.calls = nil, 0
		require.NoError(t, routed(guarded, newMessage(newDelivery(twoRetries), "other")))
		assert.Equal(t, 1, h.calls)
	})
}

// An ended context: nothing is handled without a claim, and nothing that was handled is forgotten.
func TestInboxEndedContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		msg, cancel := cancellable(fresh())
		cancel()
		require.ErrorIs(t, routed(instance(t, s, h.handle), msg), context.Canceled)
		assert.Zero(t, h.calls)

		msg, cancel = cancellable(fresh())
		require.NoError(t, routed(instance(t, s, func(*message.Message) ([]*message.Message, error) {
			cancel()

			return nil, nil
		}), msg))
		synctest.Wait()
		require.NoError(t, routed(instance(t, s, h.handle), fresh()))
		assert.Zero(t, h.calls)
	})
}

// Key factories, stores and callbacks that panic take nothing with them.
func TestInboxPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := newServer(t), &handler{}
		fail := true
		guarded := instance(t, s, h.handle, func(c *protect.DeduplicatorConfig) {
			c.KeyFactory = func(msg *message.Message) (string, error) {
				if fail {
					panic("no key")
				}

				return msg.UUID, nil
			}
		})
		require.PanicsWithValue(t, "no key", func() { _ = call(guarded, fresh()) })
		fail = false
		require.NoError(t, routed(guarded, fresh()))

		err := routed(instance(t, &server{}, h.handle, func(c *protect.DeduplicatorConfig) {
			c.OnError = func(error) { panic("in OnError") }
			c.Logger = watermill.NopLogger{}
		}), fresh())
		require.ErrorContains(t, err, "the store has panicked")
		assert.Equal(t, time.Second, postponedFor(t, err))
		assert.Equal(t, 1, h.calls)
	})
}

// Many instances get each of many messages several times, while the store comes and goes: each is
// handled once.
func TestInboxExactlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		var mu sync.Mutex
		effects := map[string]int{}
		h := func(msg *message.Message) ([]*message.Message, error) {
			wait(7 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if len(effects)%3 == 2 && effects["failed "+msg.UUID] == 0 {
				effects["failed "+msg.UUID]++

				return nil, errBoom
			}
			effects[msg.UUID]++

			return nil, nil
		}
		var wg sync.WaitGroup
		const instances, messages = 5, 40
		for i := range instances {
			guarded := instance(t, s, h)
			wg.Go(func() {
				for m := range messages {
					id := string(rune('a' + (m+i*11)%messages))
					for routed(guarded, newMessage(newDelivery(twoRetries), id)) != nil {
						wait(time.Duration(1+i) * time.Millisecond)
					}
				}
			})
		}
		wg.Go(func() {
			for range 20 {
				wait(13 * time.Millisecond)
				s.set(errDown, false)
				wait(3 * time.Millisecond)
				s.set(nil, false)
			}
		})
		wg.Wait()
		for m := range messages {
			assert.Equal(t, 1, effects["uuid of "+string(rune('a'+m))], m)
		}
	})
}

// brokenInbox returns what no store may.
type brokenInbox struct{ claim store.Claim }

func (i brokenInbox) Begin(context.Context, string, string, time.Duration) (store.Claim, error) {
	return i.claim, nil
}

type brokenClaim struct{ store.Claim }

func (brokenClaim) State() store.State { return 0 }

// A store that breaks its contract is named.
func TestInboxBreaksItsContract(t *testing.T) {
	for name, test := range map[string]struct {
		claim  store.Claim
		breach string
	}{
		"nil":            {nil, "returned neither a claim nor an error"},
		"a nil pointer":  {(*brokenClaim)(nil), "returned neither a claim nor an error"},
		"no known state": {brokenClaim{}, "returned the state 0: neither New, InFlight nor Done"},
	} {
		t.Run(name, func(t *testing.T) {
			h, o := &handler{}, &told{}
			err := routed(instance(t, brokenInbox{test.claim}, h.handle, o.tell), fresh())
			require.ErrorContains(t, err, "the store protect_test.brokenInbox "+test.breach)
			assert.Equal(t, time.Second, postponedFor(t, err))
			assert.Equal(t, []string{"claim"}, o.ops(t))
			assert.Zero(t, h.calls)
		})
	}
}

func TestDeduplicatorConfigWithInbox(t *testing.T) {
	s := newServer(t)
	_, err := protect.NewDeduplicator(protect.DeduplicatorConfig{Inbox: s, Window: time.Second, MaxKeys: 1, Lease: 1,
		Timeout: -1})
	assert.Equal(t, []string{"DeduplicatorConfig.Timeout", "DeduplicatorConfig.Lease", "DeduplicatorConfig.Window",
		"DeduplicatorConfig.MaxKeys"}, fields(t, err))
	assert.ErrorContains(t, err,
		"DeduplicatorConfig.Window: not used with an Inbox, which has its own retention: must be 0, got 1s")
	assert.ErrorContains(t, err,
		"DeduplicatorConfig.MaxKeys: not used with an Inbox, which has its own size: must be 0, got 1")

	var none *store.Memory
	_, err = protect.NewDeduplicator(protect.DeduplicatorConfig{Inbox: none})
	require.EqualError(t, err, "DeduplicatorConfig.Inbox: a nil pointer: must be a store, or nil for the memory of "+
		"this process, got (*store.Memory)(nil)")
}

// A setting that has no effect is an error, which says what to set instead.
func TestDeduplicatorConfigWithoutInbox(t *testing.T) {
	_, err := protect.NewDeduplicator(protect.DeduplicatorConfig{Name: "billing", Lease: time.Second,
		Timeout: time.Second, HandleReplays: true})
	require.EqualError(t, err, `DeduplicatorConfig.Name: not used without an Inbox: must be "", got "billing"
DeduplicatorConfig.Lease: not used without an Inbox: must be 0, got 1s
DeduplicatorConfig.Timeout: not used without an Inbox: must be 0, got 1s
DeduplicatorConfig.HandleReplays: not used without an Inbox: replays are always handled: must be false, got true`)
}
