package tests

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/processor"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// buildCommand builds the command amqpretry.
func buildCommand(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "amqpretry")
	out, err := exec.Command("go", "build", "-o", path, "../cmd/amqpretry").CombinedOutput()
	require.NoError(t, err, string(out))

	return path
}

// command is a process of amqpretry processor.
type command struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string // of its probes and metrics
	ended   chan error

	lines records[string]
}

// runProcessor starts a process, and waits until it serves its probes.
func runProcessor(t *testing.T, path, uri string, args ...string) *command {
	t.Helper()
	c := &command{t: t, ended: make(chan error, 1)}
	c.cmd = exec.Command(path, append([]string{"processor", "--listen", "127.0.0.1:0"}, args...)...)
	c.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "AMQP")
	}), "AMQP_URI="+uri)
	stderr := must(c.cmd.StderrPipe())(t)
	require.NoError(t, c.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			c.lines.put(lines.Text())
		}
	}()
	go func() {
		<-read
		c.ended <- c.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		if t.Failed() {
			logged := c.logged()
			t.Logf("the end of its log:\n%s", strings.Join(logged[max(0, len(logged)-20):], "\n"))
		}
	})
	await.Until(t, func() bool {
		for _, line := range c.logged() {
			if _, address, found := strings.Cut(line, "Serving probes and metrics\" address="); found {
				c.address = address
				return true
			}
		}
		return false
	}, "it serves its probes")

	return c
}

func (c *command) logged(parts ...string) []string {
	return c.lines.where(func(line string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
	})
}

// get is the answer of its HTTP server; 0 without one.
func (c *command) get(path string) (int, string) {
	response, err := http.Get("http://" + c.address + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body := must(io.ReadAll(response.Body))(c.t)

	return response.StatusCode, string(body)
}

func (c *command) ready() {
	c.t.Helper()
	await.Until(c.t, func() bool {
		status, _ := c.get("/readyz")
		return status == http.StatusOK
	}, "it is ready")
}

func (c *command) kill() {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Kill())
	require.Error(c.t, await.Value(c.t, c.ended, "the end of the process"), "it was killed")
}

// exit sends a signal and waits for the end, which must be a success.
func (c *command) exit(signal os.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(signal))
	require.NoError(c.t, await.Value(c.t, c.ended, "the end of the process"))
}

func policyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "retry.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))

	return path
}

// The command processes, answers probes, shows its series, reads its policies again, and ends with
// a signal.
func TestProcessorCommand(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	q := declareForeign(t, broker, uniqueName("proc"))
	for _, delay := range ms(100, 250) {
		removeTopology(t, broker, q.Main, processor.Options{Policies: retries(delay)})
	}
	policies := policyFile(t, "default: {delays: [100ms]}")
	_, management := newListing(t, q.Failed, q.Main)
	c := runProcessor(t, buildCommand(t), uri, "--policies", policies, "--match", "*.failed",
		"--management-url", management.URL)
	c.ready()
	service := consumeForeign(t, broker, q.Main)
	broker.Publish(q.Main, foreigns("once-1", "never-1")...)
	broker.Has(q.Main+".dlq", 1)
	await.Until(t, func() bool { return service.handled("once-1") == 1 }, "a retry")

	status, body := c.get("/healthz")
	assert.Equal(t, []any{200, "ok\n"}, []any{status, body})
	series := []string{
		`amqpretry_dead_letters_total{reason="rejected",topic="` + q.Main + `"} 1`,
		`amqpretry_messages_total{handler="",result="retried",topic="` + q.Main + `"} 2`,
		`amqpretry_calls_total{handler="",outcome="rejected",topic="` + q.Main + `"} 3`,
		`amqpretry_consuming_subscriptions{topic="` + q.Main + `"} 1`,
		`amqpretry_queue_messages_ready{main_queue="` + q.Main + `",queue="` + q.Main + `.dlq",role="dead-letter"} 1`,
		`amqpretry_queue_messages_ready{main_queue="` + q.Main + `",queue="` + q.Failed + `",role="failed"} 0`,
		`amqpretry_connections_opened_total{connection="processor"} 1`,
	}
	var missing []string // the processor counts a copy when it is confirmed, which is after the copy can be seen
	await.Until(t, func() bool {
		status, body = c.get("/metrics")
		require.Equal(t, 200, status)
		missing = slices.DeleteFunc(slices.Clone(series), func(line string) bool {
			return strings.Contains(body, line+"\n")
		})
		return len(missing) == 0
	}, "all series; missing: %q", &missing)

	require.NoError(t, os.WriteFile(policies, []byte("default: {delays: [100ms, oops]}"), 0o600))
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGHUP))
	await.Until(t, func() bool {
		return len(c.logged("level=ERROR", "keeping the current policies", "oops")) == 1
	}, "it keeps its policies")
	require.NoError(t, os.WriteFile(policies, []byte("default: {delays: [250ms]}"), 0o600))
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGHUP))
	await.Until(t, func() bool { return broker.Depth(q.Main+".retry.250ms") == 0 }, "new policies")
	c.ready()
	broker.Publish(q.Main, foreign("once-2"))
	await.Until(t, func() bool { return service.handled("once-2") == 1 }, "a retry")
	deliveries := service.of("once-2")
	assert.GreaterOrEqual(t, deliveries[1].At.Sub(deliveries[0].At), 250*time.Millisecond)

	c.exit(syscall.SIGTERM)
	assert.Len(t, c.logged("Processor ended"), 1)
	status, _ = c.get("/healthz")
	assert.Zero(t, status)
	broker.Has(q.Failed, 0)
	assert.Empty(t, c.logged("guest:guest"), "no password")
}

// Processes that are killed and closed while another goes on lose no message and mix up none. What
// is doubled, with its message id, was in flight.
func TestProcessorCommand_Killed(t *testing.T) {
	t.Parallel()
	killProcessors(t, "", "twice", 2, 1, 600)
}

func TestProcessorCommand_SharedFailedQueue_Killed(t *testing.T) {
	t.Parallel()
	killProcessors(t, "direct", "once", 1, 4, 100)
}

// killProcessors has main queues with one failed queue, see declareShared. The first has that many
// retries, and each other one more. Each gets so many messages that die, and that survive.
func killProcessors(t *testing.T, form, survives string, tries, mains, each int) {
	t.Helper()
	const prefetch = 20
	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	names, args, policies := []string{}, []string{"--prefetch", strconv.Itoa(prefetch)}, "topics:\n"
	for i := range mains {
		name := uniqueName(fmt.Sprintf("proc-%d", i))
		names = append(names, name)
		delays := ms(100, 150, 200, 250)[:tries+i]
		removeTopology(t, broker, name, processor.Options{Policies: retries(delays...)})
		policies += fmt.Sprintf("  %s: {delays: %s}\n", name, strings.ReplaceAll(fmt.Sprint(delays), " ", ", "))
	}
	queues := declareShared(t, broker, form, names...)
	for _, q := range queues {
		args = append(args, "--queues", q.Failed+"="+q.Main)
	}
	args = append(args, "--policies", policyFile(t, policies))
	path := buildCommand(t)
	start := func() *command {
		c := runProcessor(t, path, uri, args...)
		c.ready()

		return c
	}
	survivor, victim := start(), start()
	services := map[string]*foreigner{}
	for _, name := range names {
		services[name] = consumeForeign(t, broker, name)
	}

	published := inBackground(func() {
		batch := 20 / min(mains, 2)
		for i := 0; i < each; i += batch {
			for _, name := range names {
				for j := range batch {
					id := fmt.Sprintf("-%d-%s", i+j, name)
					broker.Publish(name, foreigns("never"+id, survives+id)...)
				}
			}
			<-time.After(200 * time.Millisecond)
		}
	})
	kills := 0
	for publishing := true; publishing; {
		<-time.After(time.Duration(rand.IntN(300)) * time.Millisecond)
		if kills%3 == 2 {
			victim.exit(syscall.SIGTERM)
		} else {
			victim.kill()
		}
		kills++
		victim = start()
		select {
		case <-published:
			publishing = false
		default:
		}
	}

	doubled := 0
	for i, name := range names {
		letters := map[string]int{}
		await.Until(t, func() bool {
			for _, d := range broker.Drain(name + ".dlq") {
				letters[d.MessageId]++
				says(t, d, "rejected", strconv.Itoa(1+tries+i))
				hasHeaders(t, d, headers{header.Queue: name})
				assert.Regexp(t, "^never-.*-"+name+"$", d.MessageId)
			}
			handled := 0
			for n := range each {
				handled += min(1, services[name].handled(fmt.Sprintf("%s-%d-%s", survives, n, name)))
			}

			return len(letters) == each && handled == each
		}, "each message comes to its end")
		for _, n := range letters {
			doubled += n - 1
		}
		for n := range each {
			doubled += services[name].handled(fmt.Sprintf("%s-%d-%s", survives, n, name)) - 1
		}
		services[name].mu.Lock()
		for id := range services[name].seen {
			assert.True(t, strings.HasSuffix(id, name), "%s came to %s", id, name)
		}
		services[name].mu.Unlock()
	}
	t.Logf("%d processes ended, %d doubled", kills, doubled)
	assert.LessOrEqual(t, doubled, kills*prefetch)
	broker.Has(queues[0].Failed, 0)
	survivor.exit(os.Interrupt)
	victim.exit(syscall.SIGTERM)
}
