package peers

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// rascal is https://www.npmjs.com/package/rascal: each consumer is a process of its own, see
// rascal/consumer.js.
type rascal struct {
	dir     string // with its packages
	version string
}

// channels is how many messages it forwards at a time, as in its example.
const channels = 10

//go:embed rascal/consumer.js rascal/package.json rascal/package-lock.json
var rascalFiles embed.FS

// newRascal fetches it into a temporary folder. An error says why it cannot be had on this machine.
func newRascal(b *testing.B) (rascal, error) {
	b.Helper()
	for _, command := range []string{"node", "npm"} {
		if _, err := exec.LookPath(command); err != nil {
			return rascal{}, fmt.Errorf("no %s on this machine", command)
		}
	}
	dir := b.TempDir()
	require.NoError(b, os.CopyFS(dir, rascalFiles))
	dir = filepath.Join(dir, "rascal")

	ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		b.Logf("npm ci: %v\n%s", err, out)
		return rascal{}, fmt.Errorf("npm ci: %w", err)
	}
	node := exec.CommandContext(ctx, "node", "-p", "['rascal', 'amqplib'].map((p) => "+
		"require(`./node_modules/${p}/package.json`).version).concat(process.version).join(' ')")
	node.Dir = dir
	out, err := node.Output()
	require.NoError(b, err)
	versions := strings.Fields(string(out))
	require.Len(b, versions, 3)

	return rascal{dir: dir, version: fmt.Sprintf("%s with amqplib %s on node %s", versions[0], versions[1],
		versions[2])}, nil
}

func (rascal) String() string { return "rascal" }

func (r rascal) arguments(q queue) amqp091.Table {
	dead := r.beside(q).dead

	return amqp091.Table{
		"x-queue-type":              q.queueType,
		"x-dead-letter-exchange":    q.name + ".dead",
		"x-dead-letter-routing-key": dead,
	}
}

func (rascal) beside(q queue) objects {
	return objects{
		retry:     q.name + ".delay.1s",
		dead:      q.name + ".dead_letters",
		exchanges: []string{q.name + ".delay", q.name + ".retry", q.name + ".dead"},
	}
}

func (r rascal) start(b *testing.B, uri string, q queue, c *calls) func() {
	b.Helper()
	beside := r.beside(q)
	given, err := json.Marshal(map[string]any{
		"uri":       uri,
		"queue":     q.name,
		"arguments": r.arguments(q),
		"exchanges": beside.exchanges,
		"retry":     beside.retry,
		"waiting":   q.waiting(beside.exchanges[1], ""),
		"dead":      beside.dead,
		"prefetch":  prefetch,
		"channels":  channels,
	})
	require.NoError(b, err)

	ctx, kill := context.WithCancel(context.Background())
	node := exec.CommandContext(ctx, "node", "consumer.js", string(given))
	node.Dir = r.dir
	var complaints bytes.Buffer
	node.Stderr = &complaints
	stdin, err := node.StdinPipe()
	require.NoError(b, err)
	stdout, err := node.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, node.Start())

	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			id, succeeded, isCall := strings.Cut(lines.Text(), " ")
			if isCall {
				c.add(id, succeeded == "true")
				continue
			}
			c.arrived()
			go func() {
				<-c.gate
				_, _ = stdin.Write([]byte("begin\n")) // it may have ended, which is noticed
			}()
		}
	}()

	return func() {
		defer kill()
		require.NoError(b, stdin.Close())
		timer := time.AfterFunc(10*time.Second, kill)
		defer timer.Stop()
		<-read
		if err := node.Wait(); err != nil || b.Failed() {
			b.Logf("rascal has ended: %v\n%s", err, complaints.String())
		}
	}
}
