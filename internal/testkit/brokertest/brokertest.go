// Package brokertest gives tests a RabbitMQ: the one they share, and private ones that a test may
// kill, freeze and restart. It is a thin face of scripts/broker.
//
// There is no way to skip: a test that needs a broker fails without one.
package brokertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// URI returns the AMQP URI of the broker that all tests share. Tests run side by side on it, so
// every test names its objects uniquely and never disturbs the broker; what disturbs belongs on a
// private one, see [Start].
func URI(t testing.TB) string {
	t.Helper()
	uri := os.Getenv("AMQP_URI")
	if uri == "" {
		t.Fatal("this test needs RabbitMQ: run it with `make test`, or `scripts/broker run go test ./...`, or set " +
			"AMQP_URI")
	}
	return uri
}

// Broker is a private broker of one test. Its methods fail the test when the broker does not obey,
// so they belong into the test's own goroutine.
type Broker struct {
	// URI stays the same when the broker is started again.
	URI string
	// ManagementURL is where its management API is, with user and password, after
	// [StartWithManagement].
	ManagementURL string
	// TLSURI is where it takes amqps, with user and password, after [StartTLS].
	TLSURI string
	// Dir holds its data and its logs.
	Dir string

	t           testing.TB
	script      string
	environment []string
}

// Start starts a private broker, which takes some seconds, and removes it when the test ends. The
// name of the test must end with _OwnBroker: make test leaves such tests out, and make test-brokers
// runs no others. The environment is for scripts/broker.
func Start(t testing.TB, environment ...string) *Broker { t.Helper(); return start(t, environment) }

// ConfirmTimeout is for [Start]: how soon a queue that dead-letters at least once tries again,
// after its target did not take a message. That is often so after a broker was killed, as its
// queues find their leaders one after the other, and RabbitMQ's own 3 minutes are longer than a
// test waits.
func ConfirmTimeout(t testing.TB, timeout time.Duration) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "advanced.config")
	settings := fmt.Appendf(nil, "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, %d}]}].\n",
		timeout.Milliseconds())
	if err := os.WriteFile(file, settings, 0o600); err != nil {
		t.Fatal(err)
	}
	return "BROKER_ADVANCED=" + file
}

// StartWithManagement is [Start] with the management plugin and its HTTP API.
func StartWithManagement(t testing.TB, environment ...string) *Broker {
	t.Helper()
	b := start(t, environment, "--management")
	b.ManagementURL = strings.TrimSpace(b.run("url", b.Dir))
	return b
}

var sharing sync.Map // names of tests

// Shared is a broker with the management plugin that several tests use at a time: none of them ends
// or stops it, and for all of it they set only how often it collects statistics and how soon it
// dead-letters again. There is one in make test-brokers; without it, and when -count runs a test
// again, whose users are there already, t gets its own.
func Shared(t testing.TB) *Broker {
	t.Helper()
	checkName(t)
	dir := os.Getenv("BROKER_SHARED")
	if _, again := sharing.LoadOrStore(t.Name(), true); dir == "" || again {
		return StartWithManagement(t)
	}
	b := &Broker{URI: URI(t), Dir: dir, t: t, script: script(t)}
	b.ManagementURL = strings.TrimSpace(b.run("url", b.Dir))

	return b
}

func start(t testing.TB, environment []string, options ...string) *Broker {
	t.Helper()
	checkName(t)
	// scripts/broker sets BROKER_DIR, and removes there what a test could not: t.Cleanup is not
	// called when the test binary is interrupted or runs into its time limit.
	dir, err := os.MkdirTemp(os.Getenv("BROKER_DIR"), "amqpretry-test-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	b := &Broker{Dir: dir, t: t, script: script(t), environment: environment}
	t.Cleanup(func() { b.run("rm", b.Dir) })
	b.start(options...)
	return b
}

// checkName keeps a test with the wrong name from making make test slow.
func checkName(t testing.TB) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	if _, isTest := t.(*testing.T); isTest && !strings.HasSuffix(name, "_OwnBroker") {
		t.Fatalf("%s starts a broker of its own: its name must end with _OwnBroker, for make test-brokers", name)
	}
}

// Start starts the broker again after [Broker.Stop] or [Broker.Kill], with the same data on the
// same port, and returns when it answers.
func (b *Broker) Start() { b.t.Helper(); b.start() }

func (b *Broker) start(options ...string) {
	b.t.Helper()
	out := strings.Fields(b.run("start", append(options, b.Dir)...))
	if len(out) == 0 {
		b.t.Fatal("scripts/broker start printed no URI")
	}
	b.URI = out[len(out)-1]
}

// Stop ends the broker as an operator would.
func (b *Broker) Stop() { b.t.Helper(); b.run("stop", b.Dir) }

// Kill ends the broker as a crash would (SIGKILL).
func (b *Broker) Kill() { b.t.Helper(); b.run("kill", b.Dir) }

// Settle returns when queues that have been declared survive [Broker.Kill]. RabbitMQ 3.10 answers a
// declaration before its tables are on the disk: killed within about three seconds, it may not know
// a queue, or give a quorum queue no leader for ever. Of 30 new quorum queues one had none, in each
// of four rounds, and after Settle none did.
func (b *Broker) Settle() {
	b.t.Helper()
	b.Ctl("eval", "[dets:sync(T) || T <- dets:all()], catch mnesia:sync_log().")
}

// Pause freezes the broker: its connections stay open and nothing answers.
func (b *Broker) Pause() { b.t.Helper(); b.run("pause", b.Dir) }

// Resume thaws it.
func (b *Broker) Resume() { b.t.Helper(); b.run("resume", b.Dir) }

// Ctl runs rabbitmqctl and returns what it printed. It takes about a second.
func (b *Broker) Ctl(args ...string) string {
	b.t.Helper()
	return b.run("ctl", append([]string{b.Dir}, args...)...)
}

// API asks the management API, after [StartWithManagement], as the user who may do everything, and
// returns the answer. It takes milliseconds where rabbitmqctl takes a second.
func (b *Broker) API(method string, body any, path ...string) string {
	b.t.Helper()
	answer, err := b.api(method, body, path)
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, strings.Join(path, " "), err)
	}
	return answer
}

func (b *Broker) api(method string, body any, path []string) (string, error) {
	content, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	address := b.ManagementURL + "/api"
	for _, segment := range path {
		address += "/" + url.PathEscape(segment)
	}
	request, err := http.NewRequestWithContext(b.t.Context(), method, address, bytes.NewReader(content))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s: %s", response.Status, answer)
	}
	return string(answer), err
}

func (b *Broker) run(command string, args ...string) string {
	b.t.Helper()
	var stdout, stderr bytes.Buffer
	// Not bound to the test's context: the last command, rm, comes when that has ended.
	cmd := exec.Command(b.script, append([]string{command}, args...)...)
	cmd.Env = append(os.Environ(), b.environment...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		b.t.Fatalf("scripts/broker %s %s: %v\n%s", command, strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String()
}

// script finds scripts/broker from the test's working folder, which go test sets to the package's.
func script(t testing.TB) string {
	t.Helper()
	path, err := find("scripts/broker")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func find(name string) (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is in no folder above %s", name, wd)
		}
	}
}
