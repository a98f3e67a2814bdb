package storetest

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

const (
	long  = time.Hour              // a lease that does not run out
	short = 300 * time.Millisecond // one that is waited for
	soon  = await.Bound            // when it must have run out, on a slow machine
	often = 10 * time.Millisecond
)

// Inbox tests an inbox.
func Inbox(t *testing.T, open func(t *testing.T) store.Inbox) {
	for name, test := range map[string]func(*testing.T, inboxes){
		"new, in flight, done":    testStates,
		"released":                testReleased,
		"handlers":                testHandlers,
		"keys":                    testKeys,
		"renewed":                 testRenewed,
		"taken over":              testTakenOver,
		"taken over by one":       testTakenOverByOne,
		"lost":                    testLost,
		"late, not taken over":    testLate,
		"ended claims":            testEndedClaims,
		"claims of others":        testClaimsOfOthers,
		"done outlives the lease": testDoneOutlivesLease,
		"too short a lease":       testShortLease,
		"ended contexts":          testEndedContexts,
		"one of many":             testOneOfMany,
		"many keys":               testManyKeys,
	} {
		t.Run(name, func(t *testing.T) { test(t, inboxes{open(t), open(t)}) })
	}
}

// inboxes are two processes.
type inboxes [2]store.Inbox

// name is one that nobody has used.
func name(t testing.TB) string { return strings.ReplaceAll(t.Name(), "/", " ") + " " + rand.Text() }

func begin(t require.TestingT, inbox store.Inbox, handler, key string, lease time.Duration) store.Claim {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	claim, err := inbox.Begin(context.Background(), handler, key, lease)
	require.NoError(t, err)
	require.NotNil(t, claim)

	return claim
}

// claimed is a claim that must be New.
func claimed(t *testing.T, inbox store.Inbox, handler, key string, lease time.Duration) store.Claim {
	t.Helper()
	claim := begin(t, inbox, handler, key, lease)
	require.Equal(t, store.New, claim.State())

	return claim
}

// assertState looks at a message without keeping it.
func assertState(t *testing.T, want store.State, inbox store.Inbox, handler, key string, why ...any) {
	t.Helper()
	claim := begin(t, inbox, handler, key, long)
	assert.Equal(t, want, claim.State(), why...)
	if claim.State() == store.New {
		require.NoError(t, claim.Release(context.Background()))
	}
}

// waitOut waits until a lease has run out, by the clock of the store: that of a claim which was
// made after it.
func waitOut(t *testing.T, inbox store.Inbox, lease time.Duration) {
	t.Helper()
	handler, key := name(t), "clock"
	claimed(t, inbox, handler, key, lease)
	takeOver(t, inbox, handler, key)
}

// inTime calls f with a key, and again with another one if that has taken as long as a short lease:
// on a machine that stands still the lease runs out, and f may fail. It returns the key.
func inTime(t *testing.T, f func(key string) error) (key string) {
	t.Helper()
	for i := range 100 {
		key = fmt.Sprintf("key-%d", i)
		began := time.Now()
		err := f(key)
		if time.Since(began) < short {
			require.NoError(t, err)
			return key
		}
	}
	t.Fatal("the store never answers within a short lease")

	return ""
}

// takeOver waits until a claim can be taken over.
func takeOver(t *testing.T, inbox store.Inbox, handler, key string) store.Claim {
	t.Helper()
	var claim store.Claim
	await.Within(t, soon, func() bool {
		var err error
		claim, err = inbox.Begin(context.Background(), handler, key, long)

		return err == nil && claim.State() == store.New
	})

	return claim
}

func testStates(t *testing.T, in inboxes) {
	handler, key := name(t), "key"
	claim := claimed(t, in[0], handler, key, long)
	for _, inbox := range in {
		other := begin(t, inbox, handler, key, long)
		assert.Equal(t, store.InFlight, other.State())
		if rest := other.Rest(); rest != 0 {
			assert.Greater(t, rest, long/2)
			assert.LessOrEqual(t, rest, long+time.Second)
		}
	}
	require.NoError(t, claim.Commit(t.Context()))
	for _, inbox := range in {
		done := begin(t, inbox, handler, key, long)
		assert.Equal(t, store.Done, done.State())
		assert.Zero(t, done.Rest())
	}
}

func testReleased(t *testing.T, in inboxes) {
	handler, key := name(t), "key"
	require.NoError(t, claimed(t, in[0], handler, key, long).Release(t.Context()))
	claim := claimed(t, in[1], handler, key, long)
	assertState(t, store.InFlight, in[0], handler, key)
	require.NoError(t, claim.Commit(t.Context()))
	assertState(t, store.Done, in[0], handler, key)
}

// Handlers of the same messages do not take them away from each other. Nor does a name that ends
// where a key begins.
func testHandlers(t *testing.T, in inboxes) {
	base := name(t)
	for _, pair := range [][2]string{
		{base, "key"}, {base + "2", "key"}, {base + "k", "ey"}, {base + " key", ""}, {base + ":k", "ey"},
		{base, ":key"},
		{base + ":", "key"}, {base + "/", "key"}, {base + "\x00", "key"}, {base, "\x00key"}, {base + "|", "key"},
		{strings.ToUpper(base), "key"}, {base + " ", "key"}, {base + "é", "key"}, {base + "{a}", "key"},
		{base + strings.Repeat("h", 10_000), "key"}, {base + "%", "key"}, {base + "\xff", "key"},
	} {
		claim := claimed(t, in[0], pair[0], pair[1], long)
		require.NoError(t, claim.Commit(t.Context()))
		assertState(t, store.Done, in[1], pair[0], pair[1])
	}
}

// Keys are bytes, whatever a collation thinks of them.
var keys = []string{
	"", " ", "  ", "\x00", "\x00\x00", "key", "KEY", "Key", "key ", "key  ", "key\t", "key\n", " key", "key\x00",
	"key\x00a", "key\x00b", "kéy", "ke\u0301y", "ключ", "КЛЮЧ", "鍵", "🔑", "🗝", "\xff", "\xfe", "key\xff", "'", `"`, `\`,
	"`", "%", "_", "*", "?", "[a]", "{key}", "{other}", "straße", "strasse", "STRASSE", "ı", "i", "I", "İ", "null", "NULL",
	"0", "00", "0x00", "-1", strings.Repeat("k", 255), strings.Repeat("k", 256), strings.Repeat("k", 10_000),
	strings.Repeat("k", 10_000) + "a", strings.Repeat("k", 10_000) + "b", strings.Repeat("\x00", 1_000),
}

func testKeys(t *testing.T, in inboxes) {
	handler := name(t)
	for _, key := range keys {
		claim := begin(t, in[0], handler, key, long)
		require.Equal(t, store.New, claim.State(), "%.40q", key)
		require.NoError(t, claim.Commit(t.Context()), "%.40q", key)
		assertState(t, store.Done, in[1], handler, key, "%.40q", key)
	}
}

func testRenewed(t *testing.T, in inboxes) {
	handler := name(t)
	var claim store.Claim
	key := inTime(t, func(key string) error {
		claim = claimed(t, in[0], handler, key, short)
		return claim.Renew(t.Context(), long)
	})
	waitOut(t, in[0], short)
	assertState(t, store.InFlight, in[1], handler, key)

	require.NoError(t, claim.Renew(t.Context(), short), "it can be made shorter as well")
	takeOver(t, in[1], handler, key)
}

func testTakenOver(t *testing.T, in inboxes) {
	handler, key := name(t), "key"
	claimed(t, in[0], handler, key, short)
	second := takeOver(t, in[1], handler, key)
	assertState(t, store.InFlight, in[0], handler, key)
	require.NoError(t, second.Commit(t.Context()))
	assertState(t, store.Done, in[0], handler, key)
}

func testTakenOverByOne(t *testing.T, in inboxes) {
	handler, key := name(t), "key"
	claimed(t, in[0], handler, key, short)
	const processes = 32
	var takers atomic.Int32
	var wg sync.WaitGroup
	ended := time.Now().Add(soon)
	for i := range processes {
		wg.Go(func() {
			for time.Now().Before(ended) && takers.Load() == 0 {
				if begin(assertive{t}, in[i%2], handler, key, long).State() == store.New {
					takers.Add(1)
				}
			}
			// And once more, now that it is taken.
			if begin(assertive{t}, in[i%2], handler, key, long).State() == store.New {
				takers.Add(1)
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1, takers.Load())
}

// What a process does that was thought dead changes nothing for the one that has taken its message over.
func testLost(t *testing.T, in inboxes) {
	for fate, check := range map[string]func(*testing.T, string, store.Claim){
		"in flight": func(t *testing.T, handler string, second store.Claim) {
			assertState(t, store.InFlight, in[0], handler, "key")
			require.NoError(t, second.Renew(t.Context(), long))
			require.NoError(t, second.Commit(t.Context()))
			assertState(t, store.Done, in[0], handler, "key")
		},
		"done": func(t *testing.T, handler string, _ store.Claim) {
			assertState(t, store.Done, in[0], handler, "key")
		},
		"released": func(t *testing.T, handler string, _ store.Claim) {
			assertState(t, store.New, in[0], handler, "key")
		},
	} {
		t.Run(fate, func(t *testing.T) {
			handler := name(t)
			first := claimed(t, in[0], handler, "key", short)
			second := takeOver(t, in[1], handler, "key")
			switch fate {
			case "done":
				require.NoError(t, second.Commit(t.Context()))
			case "released":
				require.NoError(t, second.Release(t.Context()))
			}
			require.ErrorIs(t, first.Renew(t.Context(), long), store.ErrLost)
			if fate != "released" { // then there is nobody to take it from
				require.ErrorIs(t, first.Commit(t.Context()), store.ErrLost)
			}
			require.NoError(t, first.Release(t.Context()))
			check(t, handler, second)
		})
	}
}

// A process that was late, and has had luck, may keep its claim or lose it. What the claim says must be so.
func testLate(t *testing.T, in inboxes) {
	for _, verb := range []string{"commit", "renew"} {
		handler := name(t)
		claim := claimed(t, in[0], handler, "key", short)
		waitOut(t, in[0], short)
		var err error
		kept := store.Done
		if verb == "commit" {
			err = claim.Commit(t.Context())
		} else {
			err = claim.Renew(t.Context(), long)
			kept = store.InFlight
		}
		if err != nil {
			require.ErrorIs(t, err, store.ErrLost)
			kept = store.New
		}
		assertState(t, kept, in[1], handler, "key", verb)
	}
}

func testEndedClaims(t *testing.T, in inboxes) {
	ctx, handler := t.Context(), name(t)
	committed := claimed(t, in[0], handler, "committed", long)
	require.NoError(t, committed.Commit(ctx))
	require.NoError(t, committed.Commit(ctx), "its answer may have been lost")
	require.ErrorIs(t, committed.Renew(ctx, short), store.ErrLost)
	require.NoError(t, committed.Release(ctx))
	assertState(t, store.Done, in[1], handler, "committed")
	waitOut(t, in[1], short)
	assertState(t, store.Done, in[1], handler, "committed")

	released := claimed(t, in[0], handler, "released", long)
	require.NoError(t, released.Release(ctx))
	require.NoError(t, released.Release(ctx))
	require.ErrorIs(t, released.Renew(ctx, long), store.ErrLost)
	require.ErrorIs(t, released.Commit(ctx), store.ErrLost)
	second := claimed(t, in[1], handler, "released", long)
	require.NoError(t, released.Release(ctx))
	require.ErrorIs(t, released.Commit(ctx), store.ErrLost)
	assertState(t, store.InFlight, in[0], handler, "released")
	require.NoError(t, second.Commit(ctx))
}

// Who has no claim changes nothing, be it in the same process.
func testClaimsOfOthers(t *testing.T, in inboxes) {
	ctx, handler := t.Context(), name(t)
	claim := claimed(t, in[0], handler, "key", long)
	for _, state := range []store.State{store.InFlight, store.Done} {
		for _, inbox := range in {
			other := begin(t, inbox, handler, "key", short)
			require.Equal(t, state, other.State())
			require.ErrorIs(t, other.Renew(ctx, short), store.ErrLost)
			require.ErrorIs(t, other.Commit(ctx), store.ErrLost)
			require.NoError(t, other.Release(ctx))
			assertState(t, state, inbox, handler, "key")
		}
		require.NoError(t, claim.Commit(ctx))
	}
}

func testDoneOutlivesLease(t *testing.T, in inboxes) {
	handler := name(t)
	key := inTime(t, func(key string) error {
		return claimed(t, in[0], handler, key, short).Commit(t.Context())
	})
	waitOut(t, in[0], short)
	assertState(t, store.Done, in[1], handler, key)
}

func testShortLease(t *testing.T, in inboxes) {
	handler := name(t)
	for _, lease := range []time.Duration{0, -time.Second, time.Microsecond} {
		_, err := in[0].Begin(t.Context(), handler, "key", lease)
		require.Error(t, err, "%s", lease)
	}
	claim := claimed(t, in[0], handler, "key", long)
	require.Error(t, claim.Renew(t.Context(), 0))
	assertState(t, store.InFlight, in[1], handler, "key")

	for range 3 { // whatever of it is left when the answer is there
		claimed(t, in[0], handler, "shortest"+name(t), store.MinLease)
	}
}

func testEndedContexts(t *testing.T, in inboxes) {
	handler := name(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := in[0].Begin(ended, handler, "key", long)
	require.ErrorIs(t, err, context.Canceled)

	claim := claimed(t, in[0], handler, "key", long)
	require.ErrorIs(t, claim.Renew(ended, short), context.Canceled)
	require.ErrorIs(t, claim.Commit(ended), context.Canceled)
	assertState(t, store.InFlight, in[1], handler, "key")
	require.ErrorIs(t, claim.Release(ended), context.Canceled)
	assertState(t, store.InFlight, in[1], handler, "key")
	require.NoError(t, claim.Commit(t.Context()))
	assertState(t, store.Done, in[1], handler, "key")
}

// assertive is a test in a goroutine of its own, which ends alone.
type assertive struct{ *testing.T }

func (a assertive) FailNow() {
	a.Fail()
	runtime.Goexit()
}

func testOneOfMany(t *testing.T, in inboxes) {
	handler := name(t)
	const goroutines, rounds = 16, 10
	for round := range rounds {
		key := string(rune('a' + round))
		var won, done atomic.Int32
		var start, wg sync.WaitGroup
		start.Add(1)
		for i := range goroutines {
			wg.Go(func() {
				start.Wait()
				for {
					claim := begin(assertive{t}, in[i%2], handler, key, long)
					switch claim.State() {
					case store.New:
						won.Add(1)
						assert.NoError(t, claim.Commit(context.Background()))
					case store.Done:
						done.Add(1)

						return
					}
				}
			})
		}
		start.Done()
		wg.Wait()
		assert.EqualValues(t, 1, won.Load())
		assert.EqualValues(t, goroutines, done.Load())
	}
}

// Each of many messages, which come twice, is handled once, though half of the calls fail the first time.
func testManyKeys(t *testing.T, in inboxes) {
	handler := name(t)
	const messages, goroutines = 100, 8
	var handled, failed [messages]atomic.Int32
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for m := range messages {
				m := (m + i*13) % messages
				for done := false; !done; {
					claim := begin(assertive{t}, in[i%2], handler, string(rune('a'+m)), long)
					switch {
					case claim.State() == store.Done:
						done = true
					case claim.State() == store.InFlight:
					case m%2 == 0 && failed[m].Add(1) == 1:
						assert.NoError(t, claim.Release(context.Background()))
					default:
						handled[m].Add(1)
						assert.NoError(t, claim.Commit(context.Background()))
					}
				}
			}
		})
	}
	wg.Wait()
	for m := range messages {
		assert.EqualValues(t, 1, handled[m].Load(), m)
	}
}
