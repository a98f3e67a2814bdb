package commandtest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Console is the console of the command, a process of its own.
type Console struct {
	t       *testing.T
	uri     string
	queue   string
	folder  string
	address string // host:port
	process *exec.Cmd
}

// NewConsole starts a console for the dead-letter queue of a main queue, and waits until it
// answers. The end of the test kills it.
func NewConsole(t *testing.T, uri, queue string) *Console {
	t.Helper()
	c := &Console{t: t, uri: uri, queue: queue, folder: t.TempDir(), address: "127.0.0.1:0"}
	c.Start()
	t.Cleanup(c.Kill)

	return c
}

// Start starts a killed console again, at the same address and with the same folder.
func (c *Console) Start() {
	c.t.Helper()
	c.process = exec.Command(Path(c.t), "serve", "--listen", c.address, "--folder", c.folder, "--queue", c.queue,
		"--no-delivery-limit-policy")
	c.process.Env = append(os.Environ(), "AMQP_URI="+c.uri, "AMQP_MANAGEMENT_URL=")
	stderr, err := c.process.StderrPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, c.process.Start())
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if _, address, ok := strings.Cut(lines.Text(), "The console is at http://"); ok {
			c.address = strings.TrimSuffix(address, "/")
			go func() { _, _ = io.Copy(io.Discard, stderr) }()

			return
		}
	}
	c.t.Fatal("the console did not start")
}

// Kill kills the console, as a crash would.
func (c *Console) Kill() {
	_ = c.process.Process.Kill()
	_ = c.process.Wait()
}

// URL returns the address of a page, whose path begins with a slash.
func (c *Console) URL(path string) string { return "http://" + c.address + path }

// Pid returns the identifier of the process.
func (c *Console) Pid() int { return c.process.Process.Pid }
