package examples

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// realQueues are queues that a user of the examples may have, with names that the examples once
// took for their own.
var realQueues = []string{"orders", "payments", "mails", "prices", "cards"}

// arguments keep the examples that run for long by default short.
var arguments = map[string][]string{"shop": {"-for", "1s", "-rate", "500", "-listen", "127.0.0.1:0"}}

// A broker at AMQP_URI may be one that a service uses: examples take no message from it that is not
// theirs, and leave it as it was, also when they are interrupted. `make demo` does not even touch
// it, unless it is told to.
func TestExamplesLeaveTheBrokerAsItWas_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)
	fill(t, broker.URI)
	before := objects(broker)

	t.Run("at their end", func(t *testing.T) {
		for _, arguments := range [][]string{{"demo"}, {"demo", "URI=" + broker.URI}, {"examples"}} {
			out, err := on(t.Context(), broker.URI, append([]string{"make", "-C", ".."}, arguments...)).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		assert.Equal(t, before, objects(broker))
	})

	t.Run("interrupted", func(t *testing.T) {
		command := exec.Command(program(t, "shop"), "-for", "10m", "-listen", "127.0.0.1:0")
		command.Env = append(os.Environ(), "AMQP_URI="+broker.URI)
		require.NoError(t, command.Start())
		await.Within(t, 2*time.Minute, func() bool {
			return objects(broker) != before
		}, "it has declared its queues")
		require.NoError(t, command.Process.Signal(os.Interrupt))
		_ = command.Wait() // its exit code tells of the interrupt
		assert.Equal(t, before, objects(broker))
	})
}

// An example that cannot subscribe says why, and ends.
func TestExamplesEndWhenTheyCannotSubscribe_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)
	broker.Ctl("add_user", "nobody", "secret")
	broker.Ctl("set_permissions", "nobody", "^$", "^$", "^$")
	uri, err := url.Parse(broker.URI)
	require.NoError(t, err)
	uri.User = url.UserPassword("nobody", "secret")

	examples := build(t) // takes its time on a busy machine
	ctx, cancel := context.WithTimeout(t.Context(), await.Bound)
	defer cancel()
	var wg sync.WaitGroup
	for _, example := range examples {
		wg.Add(1)
		go func() {
			defer wg.Done()
			out, err := on(ctx, uri.String(), append([]string{example}, arguments[filepath.Base(example)]...)).
				CombinedOutput()
			if assert.NoError(t, ctx.Err(), "%s does not end\n%s", example, out) && err != nil {
				assert.Regexp(t, "permission|ACCESS_REFUSED", string(out), example)
				assert.NotContains(t, string(out), "secret")
			}
		}()
	}
	wg.Wait()
}

// fill puts messages of a user's own into his queues.
func fill(t *testing.T, uri string) {
	t.Helper()
	client := rabbit.New(t, uri)
	for _, queue := range realQueues {
		client.Declare(queue, nil)
		client.Publish(queue, slices.Repeat([]amqp091.Publishing{{Body: []byte(`{"id":"real"}`)}}, 3)...)
	}
}

// objects are all queues with their depths and all exchanges of a broker.
func objects(broker *brokertest.Broker) string {
	all := broker.Ctl("--silent", "list_queues", "name", "messages") + broker.Ctl("--silent", "list_exchanges", "name")
	lines := strings.Split(all, "\n")
	slices.Sort(lines)

	return strings.Join(lines, "\n")
}

// build builds the examples, once for all tests, and gives the paths of the commands.
func build(t *testing.T) []string {
	t.Helper()
	once.Do(func() {
		var err error
		folder, err = os.MkdirTemp("", "amqpretry-examples-") //nolint:usetesting // for all tests
		require.NoError(t, err)
		out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", folder+"/", "./...",
			"../middleware/metrics/shop").CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	built, err := filepath.Glob(folder + "/*")
	require.NoError(t, err)
	require.Greater(t, len(built), 9)

	return built
}

// program is the path of one of them.
func program(t *testing.T, name string) string {
	t.Helper()
	build(t)

	return filepath.Join(folder, name)
}

var (
	once   sync.Once
	folder string // with the examples
)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// on is a command on a broker.
func on(ctx context.Context, uri string, command []string) *exec.Cmd {
	run := exec.CommandContext(ctx, command[0], command[1:]...)
	run.Env = append(os.Environ(), "AMQP_URI="+uri)
	if strings.HasSuffix(command[0], "policy-file") {
		run.Dir = ".."
	}

	return run
}
