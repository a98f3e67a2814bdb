package servecmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
)

func someone(t testing.TB, passwords map[string]int, tried func(string, string, bool)) *passwords {
	t.Helper()
	users := map[string][]byte{}
	for name, cost := range passwords {
		hash, err := bcrypt.GenerateFromPassword([]byte("secret of "+name), cost)
		require.NoError(t, err)
		users[name] = hash
	}
	p, err := newPasswords(users, roles{everybody: dlqweb.RoleView}, tried)
	require.NoError(t, err)

	return p
}

// A guesser does not learn from the time which users there are: each check takes the rounds of the
// highest cost.
func TestSignInTakesAsLongForEveryUser(t *testing.T) {
	p := someone(t, map[string]int{"ada": 4, "bob": 6}, nobodyTold)
	rounds, compare := 0, p.hashesTo
	p.hashesTo = func(hash, password []byte) error {
		cost, err := bcrypt.Cost(hash)
		require.NoError(t, err)
		rounds += 1 << cost
		return compare(hash, password)
	}
	for _, name := range []string{"ada", "bob", "eve"} {
		rounds = 0
		assert.ErrorIs(t, p.check("10.0.0.1", name, "wrong"), dlqweb.ErrUnauthenticated)
		assert.Equal(t, 1<<6, rounds, name)
	}
}

// After five failures in a row an address waits, and a name waits, longer each time, for a while.
func TestGuessersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused []string
		p := someone(t, map[string]int{"ada": 4, "bob": 4}, func(address, name string, right bool) {
			refused = append(refused, fmt.Sprint(address, " ", name, " ", right))
		})
		wait := func(address, name, password string) time.Duration {
			err := p.check(address, name, password)
			delay := (*delayError)(nil)
			if errors.As(err, &delay) {
				assert.Positive(t, delay.RetryAfter())
				return delay.RetryAfter()
			}
			if err != nil {
				assert.ErrorIs(t, err, dlqweb.ErrUnauthenticated)
			}
			return 0
		}
		require.NoError(t, p.check("10.0.0.1", "bob", "secret of bob"))
		for range freeFailures {
			assert.Zero(t, wait("10.0.0.1", "ada", "wrong"))
		}
		assert.Len(t, refused, 1+freeFailures)
		assert.Equal(t, "10.0.0.1 ada false", refused[1])
		assert.Equal(t, time.Second, wait("10.0.0.1", "ada", "secret of ada"), "its address waits")
		assert.Equal(t, time.Second, wait("10.0.0.1", "eve", "wrong"), "its address waits")
		assert.Equal(t, time.Second, wait("10.0.0.2", "ada", "wrong"), "its name waits")
		assert.Zero(t, wait("10.0.0.1", "bob", "secret of bob"), "who has signed in is not concerned")
		assert.Zero(t, wait("10.0.0.2", "eve", "wrong"), "others are not concerned")

		var delays []time.Duration
		for range 7 {
			<-time.After(longestDelay)
			assert.Zero(t, wait("10.0.0.1", "ada", "wrong"))
			delays = append(delays, wait("10.0.0.1", "ada", "wrong"))
		}
		assert.Equal(t, []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second,
			32 * time.Second, longestDelay, longestDelay}, delays)

		<-time.After(longestDelay)
		assert.Zero(t, wait("10.0.0.3", "ada", "secret of ada"))
		for range freeFailures {
			assert.Zero(t, wait("10.0.0.3", "ada", "wrong"), "a right password ends the count of a name")
		}
		<-time.After(forgetAfter + time.Second)
		for range freeFailures {
			assert.Zero(t, wait("10.0.0.1", "eve", "wrong"), "failures are forgotten")
		}
	})
}

// Addresses of one client are one: a /64 of IPv6.
func TestGroups(t *testing.T) {
	for remote, want := range map[string]string{
		"10.0.0.2:1": "10.0.0.2", "[::ffff:10.0.0.2]:1": "10.0.0.2", "[2001:db8:1:2:3::4]:1": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:1": "fe80::/64", "@": "@",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.RemoteAddr = remote
		assert.Equal(t, want, group(clientOf(r)), remote)
	}
}

// However many addresses guess, the counts take bounded memory.
func TestCountsAreBounded(t *testing.T) {
	f := failures{now: time.Now, counts: map[string]failure{}}
	for i := range mostCounted + 100 {
		require.NoError(t, f.begin(fmt.Sprint(i)))
	}
	assert.Len(t, f.counts, mostCounted)
}

// Guesses from many addresses at once: one hash at a time is compared, few wait, the others are
// told to come again, and a user who has signed in does not wait.
func TestGuessersStarveNobody(t *testing.T) {
	const guessers = 150
	var told atomic.Int32
	p := someone(t, map[string]int{"ada": 4}, func(_, _ string, right bool) {
		if !right {
			told.Add(1)
		}
	})
	require.NoError(t, p.check("10.0.0.1", "ada", "secret of ada"))
	p.hashing <- struct{}{} // a hash that takes long
	var refused atomic.Int32
	var all sync.WaitGroup
	for i := range guessers {
		all.Go(func() {
			if delay := (*delayError)(nil); errors.As(p.check(fmt.Sprint("10.1.0.", i), fmt.Sprint(i), "x"), &delay) {
				refused.Add(1)
			}
		})
	}
	assert.Eventually(t, func() bool { return refused.Load() == guessers-mostWaiting }, time.Minute, time.Millisecond)
	assert.NoError(t, p.check("10.1.0.7", "ada", "secret of ada"))
	<-p.hashing
	all.Wait()
	assert.EqualValues(t, mostWaiting, told.Load(), "the others were not compared, and do not count as failed")
	assert.Len(t, p.failures.counts, 2*mostWaiting)
}

// A script that begins with many requests at once is no guesser.
func TestParallelRequestsOfOneUser(t *testing.T) {
	p := someone(t, map[string]int{"ada": 6}, nobodyTold)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { assert.NoError(t, p.check("10.0.0.1", "ada", "secret of ada")) })
	}
	all.Wait()
	assert.Empty(t, p.failures.counts)
}

// Another user's password that is as long together with the name is another one.
func TestRememberedPasswordIsOfItsUser(t *testing.T) {
	p := someone(t, map[string]int{"ada": 4}, nobodyTold)
	require.NoError(t, p.check("10.0.0.1", "ada", "secret of ada"))
	assert.ErrorIs(t, p.check("10.0.0.1", "adas", "ecret of ada"), dlqweb.ErrUnauthenticated)
	assert.ErrorIs(t, p.check("10.0.0.1", "ad", "asecret of ada"), dlqweb.ErrUnauthenticated)
}

// Sign-ins are in the audit log, failed ones in the log as well, at a bounded rate.
func TestSignInsAreRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var audit, log bytes.Buffer
		s := newSignIns(slog.New(slog.NewTextHandler(&log, nil)))
		s.audit = slog.NewJSONHandler(&audit, nil)
		p := someone(t, map[string]int{"ada": 4}, s.tried)
		require.NoError(t, p.check("10.0.0.1", "ada", "secret of ada"))
		require.ErrorIs(t, p.check("10.0.0.9", strings.Repeat("x", 1000)+"\n", "wrong"), dlqweb.ErrUnauthenticated)
		for range 1000 {
			s.tried("10.0.0.9", "eve", false)
		}
		<-time.After(time.Second)
		s.tried("10.0.0.9", "eve", false)

		lines := strings.Split(strings.TrimSpace(audit.String()), "\n")
		assert.Less(t, len(lines), 40)
		record := func(line string) map[string]any {
			var record map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &record))
			delete(record, "time")
			return record
		}
		is := map[string]any{"level": "INFO", "msg": "dead letters: sign-in", "action": "sign-in", "user": "ada",
			"address": "10.0.0.1", "outcome": "done"}
		assert.Equal(t, is, record(lines[0]))
		is["address"], is["user"], is["outcome"] = "10.0.0.9", strings.Repeat("x", mostName)+"…", "refused"
		assert.Equal(t, is, record(lines[1]))
		last := record(lines[len(lines)-1])
		assert.InDelta(t, 1000-len(lines), last["not_recorded"], 5)
		assert.Equal(t, len(lines)-1, strings.Count(log.String(), "Refused a sign-in"))
		assert.NotContains(t, audit.String()+log.String(), "secret")
	})
}
