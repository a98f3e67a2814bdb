package crashes

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
)

// record is what services have said. It is no ledger of every message: of the messages that kill
// their process and of those beside them it counts how often each was done, charged with a crash,
// and dead-lettered.
type record struct {
	mu      sync.Mutex
	done    map[string]int
	charged map[string]int
	dead    map[string]string // reason
	most    int               // x-delivery-count with which an innocent was handled alone
	deaths  int
	ready   int
}

func newRecord() *record {
	return &record{done: map[string]int{}, charged: map[string]int{}, dead: map[string]string{}}
}

func (r *record) hear(line string) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	switch words[0] {
	case saidReady:
		r.ready++
	case saidDone:
		r.done[words[1]]++
	case saidAlone:
		if n, err := strconv.Atoi(words[2]); err == nil && !strings.HasPrefix(words[1], "killer") {
			r.most = max(r.most, n)
		}
	case saidCharged:
		r.charged[words[1]]++
	case saidDead:
		r.dead[words[1]] = words[2]
	}
}

// is asks something of the record.
func (r *record) is(condition func(*record) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return condition(r)
}

// fleet is some processes of a service, each of which is started again at once when it dies.
type fleet struct {
	t      *testing.T
	record *record
	spec   string

	mu     sync.Mutex
	stdins map[int]io.Closer
	ending bool
	all    sync.WaitGroup
}

func launch(t *testing.T, s service, workers int, r *record) *fleet {
	t.Helper()
	spec, err := json.Marshal(s)
	require.NoError(t, err)
	f := &fleet{t: t, record: r, spec: string(spec), stdins: map[int]io.Closer{}}
	for i := range workers {
		f.all.Go(func() {
			for f.run(i) {
				r.mu.Lock()
				r.deaths++
				r.mu.Unlock()
			}
		})
	}
	t.Cleanup(f.end)

	return f
}

// run is one life of a worker. It reports whether a message has ended it.
func (f *fleet) run(i int) bool {
	cmd := exec.Command(os.Args[0]) //nolint:gosec // this test itself
	cmd.Env = append(os.Environ(), variable+"="+f.spec)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		f.t.Error(err)
		return false
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		f.t.Error(err)
		return false
	}

	f.mu.Lock()
	if f.ending {
		f.mu.Unlock()
		return false
	}
	err = cmd.Start()
	f.stdins[i] = stdin
	f.mu.Unlock()
	if err != nil {
		f.t.Error(err)
		return false
	}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		f.record.hear(lines.Text())
	}
	if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() != killed {
		f.t.Errorf("worker %d: %v", i, err)
		return false
	}

	return cmd.ProcessState.ExitCode() == killed
}

// end closes all processes gracefully.
func (f *fleet) end() {
	f.mu.Lock()
	f.ending = true
	for _, stdin := range f.stdins {
		_ = stdin.Close()
	}
	f.mu.Unlock()
	f.all.Wait()
}

type broker struct {
	*rabbit.Client
	t *testing.T
}

func dial(t *testing.T) *broker {
	t.Helper()

	return dialTo(t, brokertest.URI(t))
}

func dialTo(t *testing.T, uri string) *broker { return &broker{rabbit.New(t, uri), t} }

// declare declares the queues of a service, and removes them at the end.
func (b *broker) declare(s service) {
	b.t.Helper()
	retrier, err := adapter.New(s.config(), s.options())
	require.NoError(b.t, err)
	subscriber, err := retrier.NewSubscriber()
	require.NoError(b.t, err)
	for _, queue := range s.Queues {
		require.NoError(b.t, subscriber.SubscribeInitialize(queue))
		plan, err := retrier.Plan(queue)
		require.NoError(b.t, err)
		b.t.Cleanup(func() { b.RemovePlan(plan) })
	}
	require.NoError(b.t, retrier.Close())
}

// publish publishes messages with these ids, by which logs name them too.
func (b *broker) publish(queue string, ids ...string) {
	b.t.Helper()
	messages := rabbit.Messages(ids...)
	for i, id := range ids {
		messages[i].MessageId = id
	}
	b.Publish(queue, messages...)
}

// rest takes what is left in a queue, with how often the broker has delivered it. It waits until as
// many are there as are missing.
func (b *broker) rest(queue string, isMissing func(id string) bool, missing int) map[string]int64 {
	b.t.Helper()
	left := map[string]int64{}
	found := map[string]bool{}
	await.Until(b.t, func() bool {
		for _, d := range drain.All(b.t, b.Client, queue) {
			id := rabbit.UUID(d)
			left[id], _ = d.Headers["x-delivery-count"].(int64)
			if isMissing(id) {
				found[id] = true
			}
		}
		return len(found) >= missing
	}, "%d messages that were not handled are in the queue", missing)
	require.Len(b.t, found, missing, "messages that were neither handled nor are in the queue")

	return left
}

// left is the rest where nothing is missing.
func (b *broker) left(queue string) map[string]int64 {
	b.t.Helper()
	return b.rest(queue, func(string) bool { return false }, 0)
}

// sideBySide runs a test beside the others, but for make crashes: its tables tell how long things
// take.
func sideBySide(t *testing.T) {
	t.Helper()
	if os.Getenv("CRASHES") == "" {
		t.Parallel()
	}
}

func queuesFor(n int) []string {
	queues := make([]string, n)
	for i := range queues {
		queues[i] = "crashes-" + watermill.NewShortUUID()
	}

	return queues
}
