package chaos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// notReady is the exit code of a worker to which the broker was not there when it began.
const notReady = 3

// closesWithin is how long a worker may take to close: its CloseTimeout is 5 s for each of its two
// subscribers, one after the other, and a broker that does not answer adds some seconds.
const closesWithin = 30 * time.Second

// worker is a process that is started again whenever it ends, as a supervisor does.
type worker struct {
	name, ledger string
	binaries     []string // each life has the next one
	network      *network
	broker       string        // version
	longest      time.Duration // wait that its handlers ask for

	mu       sync.Mutex
	version  Version
	life     int // how often it was started
	process  *os.Process
	stdin    io.Writer
	exited   chan struct{}
	expected bool // that it ends now
	stopped  bool
	wrong    []string
	done     chan struct{}
}

// buildWorkers builds the program with each version of watermill-amqp, and with a clock that can be
// stepped if that is wanted.
func buildWorkers(t *testing.T, steps bool) (binaries []string) {
	t.Helper()
	for _, tags := range []string{"", "amqpv3"} {
		binary := filepath.Join(t.TempDir(), "worker")
		args := []string{"build", "-o", binary}
		if steps {
			tags += ",clocksteps"
			args = append(args, "-overlay", overlayClock(t))
		}
		out, err := exec.Command("go", append(args, "-tags", tags, "./worker")...).CombinedOutput()
		require.NoError(t, err, string(out))
		binaries = append(binaries, binary)
	}

	return binaries
}

func startWorker(t *testing.T, name string, binaries []string, folder string, b *broker, version Version,
	longest time.Duration,
) *worker {
	t.Helper()
	w := &worker{
		name: name, binaries: binaries, ledger: filepath.Join(folder, name), version: version,
		network: newNetwork(t, name, b.URI), broker: b.version, longest: longest, done: make(chan struct{}),
	}
	require.NoError(t, os.WriteFile(w.ledger, nil, 0o600))
	go w.supervise()
	t.Cleanup(func() { w.stop() })

	return w
}

func (w *worker) supervise() {
	defer close(w.done)
	for {
		w.mu.Lock()
		if w.stopped {
			w.mu.Unlock()
			return
		}
		w.life++
		settings, err := json.Marshal(Settings{URI: w.network.uri, Version: w.version, Broker: w.broker,
			Prefetch: 20, Concurrency: 4, Longest: w.longest})
		if err != nil {
			panic(err)
		}
		var stderr bytes.Buffer
		cmd := exec.Command(w.binaries[w.life%len(w.binaries)], "-ledger", w.ledger, "-name",
			fmt.Sprintf("%s.%d", w.name, w.life), "-settings", string(settings))
		cmd.Stderr = &stderr
		w.stdin, err = cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			panic(err)
		}
		exited := make(chan struct{})
		w.process, w.exited, w.expected = cmd.Process, exited, false
		w.mu.Unlock()

		err = cmd.Wait()
		close(exited)

		w.mu.Lock()
		exit := (*exec.ExitError)(nil)
		if !w.expected && (!errors.As(err, &exit) || exit.ExitCode() != notReady) {
			w.wrong = append(w.wrong, fmt.Sprintf("%s.%d ended by itself: %v\n%s", w.name, w.life, err,
				tail(stderr.Bytes(), 4000)))
		}
		w.mu.Unlock()
		<-time.After(300 * time.Millisecond)
	}
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// signal tells the process that it is to end, and waits until it has.
func (w *worker) signal(s os.Signal, within time.Duration) (ended bool) {
	w.mu.Lock()
	exited := w.exited
	w.expected = true
	if w.process != nil {
		_ = w.process.Signal(s) // it may be between two lives
	}
	w.mu.Unlock()
	if exited == nil {
		return true
	}
	select {
	case <-exited:
		return true
	case <-time.After(within):
		return false
	}
}

func (w *worker) kill() { w.signal(syscall.SIGKILL, time.Minute) }

// close lets the process close by itself, which must not take longer than it may.
func (w *worker) close() {
	if !w.signal(syscall.SIGTERM, closesWithin) {
		w.mu.Lock()
		w.wrong = append(w.wrong, fmt.Sprintf("%s.%d has not closed within %s", w.name, w.life, closesWithin))
		w.mu.Unlock()
		w.signal(syscall.SIGQUIT, time.Minute) // its goroutines are of interest
	}
}

// change makes the next lives those of the other version.
func (w *worker) change() {
	w.mu.Lock()
	if w.version == VersionA {
		w.version = VersionB
	} else {
		w.version = VersionA
	}
	w.mu.Unlock()
	w.close()
}

func (w *worker) stepClock(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stdin != nil {
		_, _ = fmt.Fprintf(w.stdin, "clock %s\n", d) // it may be between two lives
	}
}

// stop closes the worker for good and gives what was wrong with it.
func (w *worker) stop() []string {
	w.mu.Lock()
	already := w.stopped
	w.stopped = true
	w.mu.Unlock()
	if !already {
		w.close()
	}
	<-w.done

	return w.wrong
}
