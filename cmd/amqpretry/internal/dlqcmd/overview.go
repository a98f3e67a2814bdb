package dlqcmd

import (
	"context"
	"strings"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// line is one dead-letter queue among all.
type line struct {
	Queue           string `json:"queue"`
	MainQueue       string `json:"main_queue"`
	MainQueueExists bool   `json:"main_queue_exists"`
	Messages        *int64 `json:"messages"`
	Ready           *int64 `json:"ready"`
	Unacked         *int64 `json:"unacked"`
}

// overview prints all dead-letter queues of the virtual host.
func (t *tool) overview(ctx context.Context) error {
	client, err := t.ManagementClient("")
	if err != nil {
		return err
	}
	if client == nil {
		return cli.Usage("listing all dead-letter queues needs the management API: set %s, or --management-url, or "+
			"name a QUEUE", cli.EnvManagement)
	}
	queues, err := client.Counts(ctx)
	if err != nil {
		return err
	}

	return t.printOverview(deadLetterQueues(queues))
}

// deadLetterQueues are those that are called as the dead-letter queue of a main queue, be it there
// or not.
func deadLetterQueues(queues []httpapi.Queue) []line {
	names := topology.Names{}.WithDefaults()
	exists := make(map[string]bool, len(queues))
	for _, q := range queues {
		exists[q.Name] = true
	}

	var lines []line
	for _, q := range queues {
		if mainQueue, is := strings.CutSuffix(q.Name, suffix); is && mainQueue != "" &&
			names.DeadLetterQueue(mainQueue) == q.Name {
			lines = append(lines, line{q.Name, mainQueue, exists[mainQueue], q.Messages, q.Ready, q.Unacked})
		}
	}

	return lines
}

func (t *tool) printOverview(lines []line) error {
	if t.JSON {
		for _, l := range lines {
			if err := t.PrintJSONLine(l); err != nil {
				return err
			}
		}
		return nil
	}
	if len(lines) == 0 {
		t.Note("there are no dead-letter queues: none whose name ends in %s", suffix)
		return nil
	}

	number := func(n *int64) string {
		if n == nil {
			return "?"
		}
		return units.Thousands(*n)
	}
	rows := make([][]string, len(lines))
	for i, l := range lines {
		mainQueue := l.MainQueue
		if !l.MainQueueExists {
			mainQueue += " (does not exist)"
		}
		rows[i] = []string{mainQueue, l.Queue, number(l.Messages), number(l.Ready), number(l.Unacked)}
	}

	return t.Table([]string{"main queue", "dead-letter queue", "messages", "ready", "unacked"}, rows)
}
