//go:build foreign

package foreign

import (
	"bufio"
	"encoding/json"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// process is a consumer or a processor.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}

	mu     sync.Mutex
	errors []string // lines of its standard error
}

func start(t *testing.T, hear func(line string), env []string, command ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(command[0], command[1:]...), ended: make(chan struct{})}
	p.cmd.Env = env
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	var read sync.WaitGroup
	read.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			hear(lines.Text())
		}
	})
	read.Go(func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.mu.Lock()
			p.errors = append(p.errors, lines.Text())
			p.mu.Unlock()
		}
	})
	go func() {
		defer close(p.ended)
		read.Wait()
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() { p.kill() })

	return p
}

// says waits for a line of its standard error.
func (p *process) says(t *testing.T, part string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Log(strings.Join(p.errors, "\n"))
		}
	}()
	await.Until(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()

		return slices.ContainsFunc(p.errors, func(line string) bool { return strings.Contains(line, part) })
	}, "a line with %q", part)
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// exit ends it as Kubernetes does. It must succeed.
func (p *process) exit(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	<-p.ended
	require.Zero(t, p.cmd.ProcessState.ExitCode())
}

// delivery is what a consumer says of one.
type delivery struct {
	ID       string
	Failures int
	Done     bool
	Body     string
	Tenant   string
}

// heard are the deliveries to all consumers of a queue.
type heard struct {
	t *testing.T

	mu   sync.Mutex
	done map[string]int          // by message id
	seen map[string]map[int]bool // the numbers of failures with which it came
	all  int
}

func (h *heard) hear(line string) {
	var d delivery
	if err := json.Unmarshal([]byte(line), &d); err != nil {
		h.t.Errorf("a consumer says %q: %v", line, err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all++
	if h.seen[d.ID] == nil {
		h.seen[d.ID] = map[int]bool{}
	}
	h.seen[d.ID][d.Failures] = true
	if d.Done {
		h.done[d.ID]++
	}
	assert.Equal(h.t, []string{bodyOf(d.ID), "acme"}, []string{d.Body, d.Tenant}, d.ID)
}

func (h *heard) doneOf(id string) int {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.done[id]
}

// counts are the numbers of failures with which each message came, in order.
func (h *heard) counts() map[string][]int {
	h.mu.Lock()
	defer h.mu.Unlock()

	counts := map[string][]int{}
	for id, seen := range h.seen {
		counts[id] = slices.Sorted(maps.Keys(seen))
	}

	return counts
}
