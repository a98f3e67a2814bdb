package tests

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// The tutorial, to the letter: its program is built, its commands run in their order, and they
// print what the page says. Two things differ: "go run ." runs the program that was built before,
// and modules come from this checkout.
func TestGettingStarted_OwnBroker(t *testing.T) {
	t.Parallel()

	broker := brokertest.StartWithManagement(t)
	page := must(os.ReadFile("../docs/getting-started.md"))(t)
	tour := &tutorial{t: t, dir: t.TempDir(), env: append(os.Environ(), "AMQP_URI="+broker.URI,
		"AMQP_MANAGEMENT_URL="+broker.ManagementURL)}
	t.Cleanup(func() { tour.stop() })

	blocks := regexp.MustCompile("(?ms)^```([a-z]+)( service)?\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	for _, block := range blocks {
		kind, service, text := block[1], block[2] != "", block[3]
		switch {
		case kind == "go":
			tour.build(text)
		case kind == "console" && service:
			tour.stop()
			tour.serve(strings.TrimPrefix(strings.TrimSpace(text), "$ "))
		case kind == "text" && service:
			await.Until(t, func() bool { return tour.output.String() == text },
				"the service prints\n%s\nand not\n%s", text, &tour.output)
		case kind == "console":
			for _, step := range strings.Split(text, "$ ")[1:] {
				command, wanted, _ := strings.Cut(step, "\n")
				tour.check(command, wanted)
			}
		}
	}
	assert.Equal(t, []string{"WAREHOUSE=closed go run .", "go run . order-1", "amqpretry dlq list orders", "go run .",
		"amqpretry dlq replay orders", "amqpretry dlq replay orders --undo replay.jsonl --yes",
		"amqpretry dlq list orders"}, tour.ran)
}

// without takes the age of a message out of a line, as it is another one in every run.
func without(output string) string {
	return regexp.MustCompile(`  \d+s  +`).ReplaceAllString(output, "  AGE  ")
}

// tutorial is a reader of the page.
type tutorial struct {
	t       *testing.T
	dir     string
	env     []string
	service *exec.Cmd
	output  output
	log     output
	ran     []string
}

func (r *tutorial) build(source string) {
	r.t.Helper()
	root := must(filepath.Abs(".."))(r.t)
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, "main.go"), []byte(source), 0o600))
	sources := map[string]string{"shop": filepath.Join(r.dir, "main.go"), "amqpretry": "./cmd/amqpretry"}
	for binary, source := range sources {
		build := exec.CommandContext(r.t.Context(), "go", "build", "-o", filepath.Join(r.dir, binary), source)
		build.Dir = root
		output, err := build.CombinedOutput()
		require.NoError(r.t, err, "%s", output)
	}
}

// command is a line of the page as it runs here.
func (r *tutorial) command(line string) *exec.Cmd {
	line = strings.ReplaceAll(line, "go run .", "./shop")
	if strings.HasPrefix(line, "amqpretry ") {
		line = "./" + line
	}
	// exec, so that signals reach the program and not the shell.
	line = regexp.MustCompile(`^((?:[A-Z]+=\w+ )*)`).ReplaceAllString(line, "${1}exec ")
	if at := strings.Index(line, "exec "); at > 0 {
		line = "exec env " + line[:at] + line[at+len("exec "):]
	}
	command := exec.CommandContext(context.WithoutCancel(r.t.Context()), "sh", "-c", line)
	command.Dir, command.Env = r.dir, r.env

	return command
}

// check runs a command and compares what it prints. What only reads is asked again, as a reader is
// slower than a dead letter or its replay.
func (r *tutorial) check(line, wanted string) {
	r.t.Helper()
	printed := r.run(line)
	if strings.Contains(line, "dlq list") {
		await.Until(r.t, func() bool {
			printed = r.run(line)
			return without(printed) == without(wanted)
		}, "$ %s prints\n%s", line, wanted)
	}
	assert.Equal(r.t, without(wanted), without(printed), "$ %s", line)
	r.ran = append(r.ran, line)
}

func (r *tutorial) run(line string) string {
	r.t.Helper()
	command := r.command(line)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	require.NoError(r.t, command.Run(), "$ %s: %s", line, &stderr)
	if strings.HasPrefix(line, "go run") { // its log goes to the standard error
		return stdout.String()
	}

	return stdout.String() + stderr.String()
}

func (r *tutorial) serve(line string) {
	r.t.Helper()
	r.ran = append(r.ran, line)
	r.output.Reset()
	r.log.Reset()
	r.service = r.command(line)
	r.service.Stdout, r.service.Stderr = &r.output, &r.log
	require.NoError(r.t, r.service.Start())
	// as the page says; a message that comes before the queue is lost
	await.Until(r.t, func() bool { return strings.Contains(r.log.String(), " Consuming ") },
		"the log of the service is\n%s", &r.log)
}

// stop ends the service as Ctrl-C does.
func (r *tutorial) stop() {
	if r.service == nil {
		return
	}
	assert.NoError(r.t, r.service.Process.Signal(syscall.SIGINT))
	assert.NoError(r.t, r.service.Wait())
	r.service = nil
}

// output is what a program has printed so far.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.text.String()
}

func (o *output) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Reset()
}
