//go:build cluster

package cluster

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// report is a table in Markdown.
type report struct{ lines []string }

func newReport(seed uint64, cluster *brokertest.Cluster) *report {
	version := strings.TrimSpace(cluster.Nodes[0].Ctl("version"))

	return &report{lines: []string{
		fmt.Sprintf("RabbitMQ %s, three nodes, SEED=%d", version, seed), "",
		"| retry queues | what happened | messages | calls | lost | handled again | sent again by their publisher | longest pause | all resumed after | |",
		"|---|---|---|---|---|---|---|---|---|---|",
	}}
}

func (r *report) add(retryQueues config.QueueType, s scenario, o outcome) {
	r.lines = append(r.lines, fmt.Sprintf("| %s | %s | %d | %d | %d | %d | %d | %.1f s | %.1f s | %s |",
		retryQueues, s.what, o.Messages, o.Calls, len(o.Lost), o.Twice, o.SentTwice, o.Pause.Seconds(), o.resumed.Seconds(), strings.Join(o.remarks, "; ")))
}

// write writes it to the standard output, and to the file that REPORT names.
func (r *report) write(t *testing.T) {
	t.Helper()
	text := strings.Join(r.lines, "\n") + "\n"
	_, _ = fmt.Fprintf(os.Stdout, "\n%s\n", text)
	if file := os.Getenv("REPORT"); file != "" {
		assert.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
}
