package redisstore_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/redisstore"
)

const howTo = "run the tests with: ../../../../scripts/redis run go test ./..."

func TestMain(m *testing.M) {
	// go-redis ends the dialling of a closed client, and its look-ups of sentinels, only after
	// their time-outs.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9.(*SentinelClient).Process"),
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).dialConn"))
}

// options are those of the Redis server of REDIS_URI.
func options(t testing.TB) *redis.Options {
	uri := os.Getenv("REDIS_URI")
	require.NotEmpty(t, uri, "REDIS_URI is not set; "+howTo)
	o, err := redis.ParseURL(uri)
	require.NoError(t, err)

	return o
}

func connect(t testing.TB, o *redis.Options) *redis.Client {
	c := redis.NewClient(o)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })

	return c
}

// newStore makes a store on the server of REDIS_URI whose keys are removed afterwards.
func newStore(t testing.TB) (*redisstore.Store, *redis.Client, string) {
	client, prefix := connect(t, options(t)), "test-"+rand.Text()
	t.Cleanup(func() {
		ctx := context.Background()
		keys := client.Scan(ctx, 0, prefix+":*", 1000).Iterator()
		for keys.Next(ctx) {
			client.Del(ctx, keys.Val())
		}
		assert.NoError(t, keys.Err())
	})

	return storeOn(t, client, prefix), client, prefix
}

func storeOn(t testing.TB, client redis.Scripter, prefix string) *redisstore.Store {
	s, err := redisstore.New(client, redisstore.Config{Prefix: prefix})
	require.NoError(t, err)

	return s
}

// server is a Redis server of a test's own.
type server struct {
	t    testing.TB
	addr string
	args []string
	cmd  *exec.Cmd
	log  string
}

// startServer starts a Redis server on a free port. With the argument --sentinel it needs a file as
// its first one.
func startServer(t testing.TB, args ...string) *server {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close())
	_, port, _ := net.SplitHostPort(addr)
	dir := t.TempDir()
	args = append(args, "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "")
	s := &server{t: t, addr: addr, args: args, log: filepath.Join(dir, "log")}
	t.Cleanup(s.kill)
	s.start()

	return s
}

func (s *server) start() {
	path := os.Getenv("REDIS_SERVER")
	require.NotEmpty(s.t, path, "REDIS_SERVER is not set: this test starts a server of its own; "+howTo)
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(s.t, err)
	defer log.Close() //nolint:errcheck // the server has it
	s.cmd = exec.Command(path, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	require.NoError(s.t, s.cmd.Start())
	client := redis.NewClient(&redis.Options{Addr: s.addr})
	defer client.Close() //nolint:errcheck // only asks whether the server answers
	await.Until(s.t, func() bool { return client.Ping(context.Background()).Err() == nil },
		"redis-server does not answer; its log is %s", s.log)
}

// kill ends it by SIGKILL, as a crash does.
func (s *server) kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

func (s *server) signal(sig syscall.Signal) { require.NoError(s.t, s.cmd.Process.Signal(sig)) }

func (s *server) port() string {
	_, port, _ := net.SplitHostPort(s.addr)

	return port
}

func (s *server) client() *redis.Client { return connect(s.t, &redis.Options{Addr: s.addr}) }

// forgetful is a proxy in front of a server. It can lose answers: the server has done what was
// asked, the client sees a connection that ends.
type forgetful struct {
	listener net.Listener
	target   string
	group    sync.WaitGroup
	mu       sync.Mutex
	lose     int
	lost     int
	conns    []net.Conn
}

func startForgetful(t testing.TB, target string) *forgetful {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &forgetful{listener: listener, target: target}
	p.group.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.group.Wait()
	})

	return p
}

func (p *forgetful) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()

			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		p.group.Go(func() { p.pipe(server, client, false) })
		p.group.Go(func() { p.pipe(client, server, true) })
	}
}

func (p *forgetful) pipe(to, from net.Conn, answers bool) {
	defer to.Close()   //nolint:errcheck // both ends end together
	defer from.Close() //nolint:errcheck // both ends end together
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if answers && p.loses() {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (p *forgetful) loses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lose == 0 {
		return false
	}
	p.lose--
	p.lost++

	return true
}

// loseNext makes it lose the next answer. The function that it returns checks that this has
// happened.
func (p *forgetful) loseNext(t testing.TB) (check func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose, p.lost = 1, 0

	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		assert.Equal(t, 1, p.lost, "no answer was lost")
	}
}

// startCluster starts a Redis Cluster of three masters.
func startCluster(t testing.TB) (*redis.ClusterClient, []*server) {
	ctx := t.Context()
	servers := make([]*server, 3)
	for i := range servers {
		bus, err := net.Listen("tcp", "127.0.0.1:0") // by default 10,000 above the port, which may be none
		require.NoError(t, err)
		require.NoError(t, bus.Close())
		_, port, _ := net.SplitHostPort(bus.Addr().String())
		servers[i] = startServer(t, "--cluster-enabled", "yes", "--cluster-port", port)
		client := servers[i].client()
		require.NoError(t, client.ClusterAddSlotsRange(ctx, i*16384/3, (i+1)*16384/3-1).Err())
		require.NoError(t, client.Do(ctx, "CONFIG", "SET", "cluster-node-timeout", "2000").Err())
		require.NoError(t, client.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		if i > 0 {
			first := servers[0].port()
			require.NoError(t, client.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", first, servers[0].busPort()).Err())
		}
	}
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.addr
		client := s.client()
		await.Until(t, func() bool {
			info, err := client.ClusterInfo(ctx).Result()

			return err == nil && contains(info, "cluster_state:ok") && contains(info, "cluster_size:3")
		}, "the cluster does not form")
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })

	return client, servers
}

func (s *server) busPort() string {
	for i, arg := range s.args {
		if arg == "--cluster-port" {
			return s.args[i+1]
		}
	}

	return ""
}

// startSentinel starts a master, a replica and a sentinel that watches both.
func startSentinel(t testing.TB) (client *redis.Client, master, replica *server) {
	master = startServer(t)
	replica = startServer(t, "--replicaof", "127.0.0.1 "+master.port())
	replicates := replica.client()
	await.Until(t, func() bool {
		return contains(replicates.Info(t.Context(), "replication").Val(), "master_link_status:up")
	}, "the replica does not connect")

	file := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "sentinel monitor main 127.0.0.1 %s 1\n"+
		"sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n", master.port()), 0o600))
	sentinel := startServer(t, file, "--sentinel")
	watches := redis.NewSentinelClient(&redis.Options{Addr: sentinel.addr})
	t.Cleanup(func() { assert.NoError(t, watches.Close()) })
	await.Until(t, func() bool {
		replicas, err := watches.Replicas(t.Context(), "main").Result()

		return err == nil && len(replicas) == 1
	}, "the sentinel does not see the replica")
	client = redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel.addr}})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })

	return client, master, replica
}

func atoi(t testing.TB, b []byte) int {
	if b == nil {
		return 0
	}
	n, err := strconv.Atoi(string(b))
	assert.NoError(t, err)

	return n
}
