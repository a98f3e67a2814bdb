package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/redisstore"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/storetest"
)

var contains = strings.Contains

func claim(t testing.TB, s store.Inbox, key string, lease time.Duration, want store.State) store.Claim {
	t.Helper()
	c, err := s.Begin(t.Context(), "orders", key, lease)
	require.NoError(t, err)
	require.Equal(t, want, c.State(), "state of %q", key)

	return c
}

func add(t testing.TB, s store.Values, name string) {
	t.Helper()
	require.NoError(t, s.Update(t.Context(), name, time.Minute, func(_ time.Time, old []byte) ([]byte, error) {
		return strconv.AppendInt(nil, int64(atoi(t, old)+1), 10), nil
	}))
}

func valueOf(t testing.TB, s store.Values, name string) (n int) {
	t.Helper()
	require.NoError(t, s.Update(t.Context(), name, time.Minute, func(_ time.Time, old []byte) ([]byte, error) {
		n = atoi(t, old)

		return nil, nil
	}))

	return n
}

func TestInbox(t *testing.T) {
	_, _, prefix := newStore(t)
	storetest.Inbox(t, func(t *testing.T) store.Inbox { return storeOn(t, connect(t, options(t)), prefix) })
}

func TestValues(t *testing.T) {
	_, _, prefix := newStore(t)
	storetest.Values(t, func(t *testing.T) store.Values { return storeOn(t, connect(t, options(t)), prefix) })
}

func TestConfigValidate(t *testing.T) {
	require.NoError(t, redisstore.Config{}.Validate())
	require.NoError(t, redisstore.Config{Prefix: "a:{b}", Retention: time.Millisecond}.Validate())
	err := redisstore.Config{Prefix: "ä b", Retention: -1}.Validate()
	var field *config.FieldError
	require.ErrorAs(t, err, &field)
	assert.Equal(t, "Config.Prefix: out of bounds: must be up to 128 printable ASCII characters without spaces, got "+
		`"\u00e4 b"`+"\nConfig.Retention: too short: must be at least 1ms, or 0 for 168h0m0s, got -1ns", err.Error())

	_, err = redisstore.New(nil, redisstore.Config{Retention: -1})
	require.ErrorAs(t, err, &field)
	_, err = redisstore.New(nil, redisstore.Config{})
	require.EqualError(t, err, "cannot make a Redis store: no client; pass one, such as redis.NewClient")
}

func TestRetention(t *testing.T) {
	s, client, prefix := newStore(t)
	require.NoError(t, claim(t, s, "1", time.Second, store.New).Commit(t.Context()))
	left, err := client.PTTL(t.Context(), prefix+":inbox:orders/1").Result()
	require.NoError(t, err)
	assert.InDelta(t, 7*24*time.Hour, left, float64(time.Minute), "a week by default")

	short, err := redisstore.New(client, redisstore.Config{Prefix: prefix, Retention: 50 * time.Millisecond})
	require.NoError(t, err)
	require.NoError(t, claim(t, short, "2", time.Second, store.New).Commit(t.Context()))
	await.Until(t, func() bool {
		c, err := short.Begin(t.Context(), "orders", "2", time.Second)

		return err == nil && c.State() == store.New
	}, "a duplicate after the retention is handled again")
}

// A claim that Redis has forgotten before its lease ended is its owner's: he goes on, and what he
// commits is done.
func TestForgottenClaim(t *testing.T) {
	s, client, prefix := newStore(t)
	ctx := t.Context()
	renewed, committed := claim(t, s, "1", time.Minute, store.New), claim(t, s, "2", time.Minute, store.New)
	require.NoError(t, client.Del(ctx, prefix+":inbox:orders/1", prefix+":inbox:orders/2").Err())

	require.NoError(t, renewed.Renew(ctx, time.Minute))
	claim(t, s, "1", time.Minute, store.InFlight)
	require.NoError(t, committed.Commit(ctx))
	claim(t, s, "2", time.Minute, store.Done)

	// Somebody else has it since: then it is his.
	require.NoError(t, client.Del(ctx, prefix+":inbox:orders/1").Err())
	other := claim(t, s, "1", time.Minute, store.New)
	require.ErrorIs(t, renewed.Renew(ctx, time.Millisecond), store.ErrLost)
	require.ErrorIs(t, renewed.Commit(ctx), store.ErrLost)
	require.NoError(t, renewed.Release(ctx))
	require.NoError(t, other.Commit(ctx))
}

func TestOneOwner(t *testing.T) {
	const callers = 1000
	s, client, prefix := newStore(t)
	second := storeOn(t, connect(t, client.Options()), prefix)
	var (
		group  sync.WaitGroup
		mu     sync.Mutex
		states = map[store.State]int{}
		owner  store.Claim
	)
	for i := range callers {
		group.Go(func() {
			of := s
			if i%2 == 1 {
				of = second
			}
			c, err := of.Begin(t.Context(), "orders", "one", time.Minute)
			if !assert.NoError(t, err) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			states[c.State()]++
			if c.State() == store.New {
				owner = c
			} else {
				assert.InDelta(t, time.Minute, c.Rest(), float64(30*time.Second))
			}
		})
	}
	group.Wait()
	require.Equal(t, map[store.State]int{store.New: 1, store.InFlight: callers - 1}, states)
	require.NoError(t, owner.Commit(t.Context()))
	claim(t, second, "one", time.Minute, store.Done)
}

// Two clients, as of two processes, change one value at the same time.
func TestUpdateByManyClients(t *testing.T) {
	const clients, each = 4, 100
	s, client, prefix := newStore(t)
	var group sync.WaitGroup
	for range clients {
		of := storeOn(t, connect(t, client.Options()), prefix)
		for range each {
			group.Go(func() { add(t, of, "count") })
		}
	}
	group.Wait()
	assert.Equal(t, clients*each, valueOf(t, s, "count"))
}

func TestUpdateEndsWithItsContextUnderContention(t *testing.T) {
	s, client, prefix := newStore(t)
	other := storeOn(t, client, prefix)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	calls := 0
	err := s.Update(ctx, "count", time.Minute, func(time.Time, []byte) ([]byte, error) {
		calls++
		add(t, other, "count") // somebody else is always faster

		return []byte("0"), nil
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, calls, valueOf(t, s, "count"))
}

func TestUpdateGivesUpWithoutAnEnd(t *testing.T) {
	s, client, prefix := newStore(t)
	other := storeOn(t, client, prefix)
	calls := 0
	err := s.Update(context.Background(), "count", time.Minute, func(time.Time, []byte) ([]byte, error) {
		calls++
		add(t, other, "count")

		return []byte("0"), nil
	})
	require.EqualError(t, err, `cannot update the value "count": other processes changed it 200 times meanwhile; `+
		"update the value less often, or from fewer processes")
	assert.Equal(t, 200, calls)
}

func TestServersClock(t *testing.T) {
	s, client, _ := newStore(t)
	before, err := client.Time(t.Context()).Result()
	require.NoError(t, err)
	var now time.Time
	require.NoError(t, s.Update(t.Context(), "x", time.Minute, func(n time.Time, _ []byte) ([]byte, error) {
		now = n

		return nil, nil
	}))
	after, err := client.Time(t.Context()).Result()
	require.NoError(t, err)
	assert.False(t, now.Before(before) || now.After(after), "%v is not between %v and %v", now, before, after)
}

// No two claims or values have the same key, whatever bytes and prefixes they have. Foreign values
// are left alone.
func TestKeysAreUnambiguous(t *testing.T) {
	client := connect(t, &redis.Options{})
	seen := map[string]string{}
	parts := []string{"a", ":", "/", "inbox", "value", "%", "~", "{", "}", "\x00", "\xff", "%2F",
		strings.Repeat("l", 129)}
	random := rand.New(rand.NewPCG(1, 2))
	text := func(from []string) (s string) {
		for range random.IntN(4) {
			s += from[random.IntN(len(from))]
		}

		return s
	}
	check := func(key, identity string) {
		if other, ok := seen[key]; ok {
			require.Equal(t, other, identity, "key %q", key)
		}
		seen[key] = identity
		assert.Less(t, len(key), 128+20+2*3*128)
	}
	for range 200_000 {
		prefix := text([]string{"a", ":", "/", "inbox", "value", "%"})
		if prefix == "" {
			prefix = "amqpretry"
		}
		s, err := redisstore.New(client, redisstore.Config{Prefix: prefix})
		require.NoError(t, err)
		handler, key := text(parts), text(parts)
		check(redisstore.InboxKey(s, handler, key), fmt.Sprintf("claim %q %q %q", prefix, handler, key))
		check(redisstore.ValueKey(s, key), fmt.Sprintf("value %q %q", prefix, key))
	}
	s, err := redisstore.New(client, redisstore.Config{})
	require.NoError(t, err)
	assert.Equal(t, "amqpretry:inbox:on_order/a%2F%00.1-2", redisstore.InboxKey(s, "on_order", "a/\x00.1-2"))
}

func TestForeignValues(t *testing.T) {
	s, client, prefix := newStore(t)
	ctx := t.Context()
	require.NoError(t, client.Set(ctx, prefix+":inbox:orders/1", "x", 0).Err())
	require.NoError(t, client.Set(ctx, prefix+":value:1", "x", 0).Err())
	require.NoError(t, client.LPush(ctx, prefix+":inbox:orders/2", "x").Err())
	const advice = "; give the store a Prefix that nothing else uses"
	_, err := s.Begin(ctx, "orders", "1", time.Second)
	require.EqualError(t, err, `cannot claim a message for handler "orders": key "1": the key holds something that is not `+
		"of this store"+advice)
	_, err = s.Begin(ctx, "orders", "2", time.Second)
	require.ErrorContains(t, err, "WRONGTYPE")
	require.ErrorContains(t, err, advice)
	err = s.Update(ctx, "1", time.Second, func(time.Time, []byte) ([]byte, error) { return []byte("y"), nil })
	require.EqualError(t, err, `cannot update the value "1": the key holds something that is not of this store`+advice)
	assert.Equal(t, "x", client.Get(ctx, prefix+":inbox:orders/1").Val())
	assert.Equal(t, "x", client.Get(ctx, prefix+":value:1").Val())
}

func TestScriptsFlushed(t *testing.T) {
	server := startServer(t)
	client := server.client()
	s := storeOn(t, client, "")
	flush := func() { require.NoError(t, client.ScriptFlush(t.Context()).Err()) }
	for i := range 3 {
		flush()
		c := claim(t, s, strconv.Itoa(i), time.Minute, store.New)
		flush()
		require.NoError(t, c.Renew(t.Context(), time.Minute))
		flush()
		require.NoError(t, c.Commit(t.Context()))
		claim(t, s, strconv.Itoa(i), time.Minute, store.Done)
		c = claim(t, s, "released", time.Minute, store.New)
		flush()
		require.NoError(t, c.Release(t.Context()))
		flush()
		add(t, s, "count")
		assert.Equal(t, i+1, valueOf(t, s, "count"))
	}
}

// The client sends a command again when the connection ends before its answer. The server may have
// done it twice then.
func TestLostAnswers(t *testing.T) {
	o := options(t)
	proxy := startForgetful(t, o.Addr)
	direct, _, prefix := newStore(t)
	o.Addr = proxy.listener.Addr().String()
	client := connect(t, o)
	s := storeOn(t, client, prefix)
	warm := claim(t, s, "warm", time.Minute, store.New) // connected, and all scripts are known
	require.NoError(t, warm.Renew(t.Context(), time.Minute))
	require.NoError(t, warm.Release(t.Context()))
	require.NoError(t, claim(t, s, "warm", time.Minute, store.New).Commit(t.Context()))
	add(t, s, "count")

	check := proxy.loseNext(t)
	c := claim(t, s, "1", time.Minute, store.New)
	check()
	claim(t, direct, "1", time.Minute, store.InFlight)
	check = proxy.loseNext(t)
	require.NoError(t, c.Renew(t.Context(), time.Minute))
	check()
	check = proxy.loseNext(t)
	require.NoError(t, c.Commit(t.Context()))
	check()
	claim(t, direct, "1", time.Minute, store.Done)

	c = claim(t, s, "2", time.Minute, store.New)
	check = proxy.loseNext(t)
	require.NoError(t, c.Release(t.Context()))
	check()
	claim(t, direct, "2", time.Minute, store.New)

	calls := 0
	require.NoError(t, s.Update(t.Context(), "count", time.Minute, func(_ time.Time, old []byte) ([]byte, error) {
		calls++
		check = proxy.loseNext(t)

		return strconv.AppendInt(nil, int64(atoi(t, old)+1), 10), nil
	}))
	check()
	assert.Equal(t, 1, calls)
	assert.Equal(t, 2, valueOf(t, direct, "count"))
}

// With appendfsync always the server answers when its disk has the claim.
func TestServerKilled(t *testing.T) {
	server := startServer(t, "--appendonly", "yes", "--appendfsync", "always")
	client := server.client()
	s := storeOn(t, client, "")
	var (
		group             sync.WaitGroup
		mu                sync.Mutex
		claimed, done     []string
		ctx, stop         = context.WithCancel(t.Context())
		enough            = make(chan struct{})
		claims, committed = 0, 0
	)
	for worker := range 8 {
		group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("%d/%d", worker, i)
				c, err := s.Begin(ctx, "orders", key, time.Hour)
				if err != nil {
					return
				}
				assert.Equal(t, store.New, c.State())
				ok := i%2 == 0 && c.Commit(ctx) == nil
				mu.Lock()
				claims++
				if ok {
					committed++
					done = append(done, key)
				} else {
					claimed = append(claimed, key)
				}
				if claims == 2000 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	server.kill()
	stop()
	group.Wait()
	server.start()

	t.Logf("%d claims, %d of them committed", claims, committed)
	for _, key := range done {
		claim(t, s, key, time.Hour, store.Done)
	}
	for _, key := range claimed {
		c, err := s.Begin(t.Context(), "orders", key, time.Hour)
		require.NoError(t, err)
		require.NotEqual(t, store.New, c.State(), "claim %s is forgotten", key)
	}
}

// A frozen server takes connections and commands, and answers nothing.
func TestServerFrozen(t *testing.T) {
	server := startServer(t)
	// No time-outs but those of the contexts.
	client := connect(t, &redis.Options{Addr: server.addr, ReadTimeout: -1, WriteTimeout: -1, MaxRetries: -1})
	s := storeOn(t, client, "")
	renewed, committed, released := claim(t, s, "1", time.Hour, store.New), claim(t, s, "2", time.Hour, store.New),
		claim(t, s, "3", time.Hour, store.New)
	calls := map[string]func(ctx context.Context) error{
		"begin":   func(ctx context.Context) error { _, err := s.Begin(ctx, "orders", "4", time.Hour); return err },
		"renew":   func(ctx context.Context) error { return renewed.Renew(ctx, time.Hour) },
		"commit":  committed.Commit,
		"release": released.Release,
		"update": func(ctx context.Context) error {
			return s.Update(ctx, "x", time.Hour, func(time.Time, []byte) ([]byte, error) { return []byte("1"), nil })
		},
	}
	server.signal(syscall.SIGSTOP)
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		begin := time.Now()
		err := call(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.ErrorContains(t, err, "; see whether Redis is slow or frozen, or allow more time", name)
		assert.Less(t, time.Since(begin), 5*time.Second, name)
		cancel()

		ctx, cancel = context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled, name)
	}
	server.signal(syscall.SIGCONT)
	require.NoError(t, renewed.Renew(t.Context(), time.Hour))
	require.NoError(t, committed.Commit(t.Context()))
	claim(t, s, "2", time.Hour, store.Done)
	require.NoError(t, released.Release(t.Context()))
	claim(t, s, "3", time.Hour, store.New)
}

func TestUpdateWaitsForItsTurnUntilItsContextEnds(t *testing.T) {
	s, _, _ := newStore(t)
	inside, leave, left := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		left <- s.Update(context.Background(), "x", time.Minute, func(time.Time, []byte) ([]byte, error) {
			close(inside)
			<-leave

			return []byte("1"), nil
		})
	}()
	<-inside
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := s.Update(ctx, "x", time.Minute, func(time.Time, []byte) ([]byte, error) { return []byte("2"), nil })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	add(t, s, "y") // other names do not wait
	close(leave)
	require.NoError(t, <-left)
	assert.Equal(t, 1, valueOf(t, s, "x"))
	assert.Panics(t, func() {
		_ = s.Update(t.Context(), "x", time.Minute, func(time.Time, []byte) ([]byte, error) { panic("bug") })
	})
	assert.Equal(t, 1, valueOf(t, s, "x"), "a panic leaves no lock behind")
}

func TestCluster(t *testing.T) {
	client, servers := startCluster(t)
	s := storeOn(t, client, "")
	for i := range 100 {
		key := "{" + strconv.Itoa(i) + "}"
		c := claim(t, s, key, time.Minute, store.New)
		claim(t, s, key, time.Minute, store.InFlight)
		require.NoError(t, c.Renew(t.Context(), time.Minute))
		require.NoError(t, c.Commit(t.Context()))
		claim(t, s, key, time.Minute, store.Done)
		add(t, s, key)
		add(t, s, key)
		assert.Equal(t, 2, valueOf(t, s, key))
	}
	for _, server := range servers {
		assert.Positive(t, server.client().DBSize(t.Context()).Val(), "every node has some of the keys")
	}
	warnings, err := redisstore.Check(t.Context(), client)
	require.NoError(t, err)
	assert.Len(t, warnings, 3, "one of each master: %v", warnings)
}

// A failover is what the documentation says: the store goes on with the new master.
func TestSentinelFailover(t *testing.T) {
	client, master, replica := startSentinel(t)
	s := storeOn(t, client, "")
	c := claim(t, s, "1", time.Hour, store.New)
	require.NoError(t, claim(t, s, "2", time.Hour, store.New).Commit(t.Context()))
	require.NoError(t, client.Wait(t.Context(), 1, time.Minute).Err())
	master.kill()
	await.Within(t, 2*time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		return c.Renew(ctx, time.Hour) == nil
	}, "no failover")
	claim(t, s, "1", time.Hour, store.InFlight)
	claim(t, s, "2", time.Hour, store.Done)
	assert.Contains(t, replica.client().Info(t.Context(), "replication").Val(), "role:master")
}

func TestErrorsSayWhatToDo(t *testing.T) {
	begin := func(t *testing.T, o *redis.Options) error {
		_, err := storeOn(t, connect(t, o), "").Begin(t.Context(), "orders", strings.Repeat("k", 200), time.Second)
		var e *redisstore.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, "orders", e.Handler)
		require.ErrorContains(t, err, `cannot claim a message for handler "orders": key "`+strings.Repeat("k", 100)+`"…: `)

		return err
	}
	t.Run("no server", func(t *testing.T) {
		err := begin(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
		require.ErrorContains(t, err, "; see whether Redis runs and the client has its address")
	})
	t.Run("memory full", func(t *testing.T) {
		server := startServer(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
		require.ErrorContains(t, begin(t, &redis.Options{Addr: server.addr}),
			"; raise maxmemory of Redis, or lower Config.Retention")
	})
	t.Run("replica", func(t *testing.T) {
		replica := startServer(t, "--replicaof", "127.0.0.1 1")
		require.ErrorContains(t, begin(t, &redis.Options{Addr: replica.addr, MaxRetries: -1}),
			"; connect to the master: by a Sentinel or Cluster client, or its address")
	})
	t.Run("password", func(t *testing.T) {
		server := startServer(t)
		client := server.client()
		require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "poor", "on", ">x", "+@connection", "+info").Err())
		require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">secret").Err())
		require.ErrorContains(t, begin(t, &redis.Options{Addr: server.addr}),
			"; set user and password of the Redis client")
		require.ErrorContains(t, begin(t, &redis.Options{Addr: server.addr, Username: "poor", Password: "x"}),
			"; allow the Redis user what docs/reference/stores.md#redis lists")
	})
	t.Run("too few replicas", func(t *testing.T) {
		server := startServer(t, "--min-replicas-to-write", "1")
		require.ErrorContains(t, begin(t, &redis.Options{Addr: server.addr}),
			"; see whether its replicas run, or lower min-replicas-to-write")
	})
	t.Run("closed client", func(t *testing.T) {
		client := redis.NewClient(options(t))
		require.NoError(t, client.Close())
		_, err := storeOn(t, client, "").Begin(t.Context(), "orders", "1", time.Second)
		require.ErrorContains(t, err, "; close the client after the router")
	})
	t.Run("times", func(t *testing.T) {
		s, _, _ := newStore(t)
		_, err := s.Begin(t.Context(), "orders", "1", 0)
		require.EqualError(t, err, `cannot claim a message for handler "orders": key "1": `+
			store.CheckLease(0).Error())
		require.EqualError(t, s.Update(t.Context(), "x", 0, nil), `cannot update the value "x": `+
			store.CheckLease(0).Error())
	})
}

// A user with the permissions of docs/reference/stores.md#redis can do everything, and no more.
func TestPermissions(t *testing.T) {
	server := startServer(t)
	require.NoError(t, server.client().Do(t.Context(), "ACL", "SETUSER", "orders", "on", ">secret", "~orders:*",
		"+@connection", "+eval", "+evalsha", "+get", "+set", "+del", "+pttl", "+time", "+info", "+config|get").Err())
	client := connect(t, &redis.Options{Addr: server.addr, Username: "orders", Password: "secret"})
	s := storeOn(t, client, "orders")
	c := claim(t, s, "1", time.Minute, store.New)
	claim(t, s, "1", time.Minute, store.InFlight)
	require.NoError(t, c.Renew(t.Context(), time.Minute))
	require.NoError(t, c.Release(t.Context()))
	require.NoError(t, claim(t, s, "1", time.Minute, store.New).Commit(t.Context()))
	add(t, s, "x")
	_, err := redisstore.Check(t.Context(), client)
	require.NoError(t, err)
	_, err = storeOn(t, client, "invoices").Begin(t.Context(), "orders", "1", time.Minute)
	require.ErrorContains(t, err, "allow the Redis user what")
}

func TestCheck(t *testing.T) {
	settings := func(client redis.UniversalClient) (names []string) {
		warnings, err := redisstore.Check(t.Context(), client)
		require.NoError(t, err)
		for _, w := range warnings {
			names = append(names, w.Setting+" "+w.Value)
			assert.NotEmpty(t, w.Advice)
		}

		return names
	}
	safe := startServer(t, "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")
	client := safe.client()
	assert.Empty(t, settings(client))
	require.NoError(t, client.ConfigSet(t.Context(), "appendfsync", "everysec").Err())
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory-policy", "volatile-ttl").Err())
	assert.Equal(t, []string{"appendfsync everysec", "maxmemory-policy volatile-ttl"}, settings(client))
	warnings, err := redisstore.Check(t.Context(), client)
	require.NoError(t, err)
	assert.Equal(t, safe.addr+": maxmemory-policy volatile-ttl: Redis deletes claims and marks when its memory "+
		"is full; set it to noeviction", warnings[1].String())

	// Hosted servers forbid CONFIG.
	hosted := startServer(t, "--appendonly", "yes", "--rename-command", "CONFIG", "")
	assert.Equal(t, []string{"appendfsync "}, settings(hosted.client()))

	replica := startServer(t, "--replicaof", "127.0.0.1 "+safe.port())
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	require.NoError(t, client.ConfigSet(t.Context(), "appendfsync", "always").Err())
	await.Until(t, func() bool {
		return fmt.Sprint(settings(client)) == "[min-replicas-to-write 0]"
	}, "no replica")
	assert.Equal(t, []string{"appendonly no", "replicaof 127.0.0.1 " + safe.port()}, settings(replica.client()))
	require.NoError(t, client.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	assert.Empty(t, settings(client))

	_, err = redisstore.Check(t.Context(), connect(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1}))
	require.ErrorContains(t, err, "cannot check the settings of Redis: ")
	require.ErrorContains(t, err, "; see whether Redis runs and the client has its address")
}

func TestErrorOfChange(t *testing.T) {
	s, _, _ := newStore(t)
	add(t, s, "x")
	stop := errors.New("stop")
	require.Equal(t, stop, s.Update(t.Context(), "x", time.Minute, func(time.Time, []byte) ([]byte, error) {
		return []byte("7"), stop
	}))
	assert.Equal(t, 1, valueOf(t, s, "x"))
}
