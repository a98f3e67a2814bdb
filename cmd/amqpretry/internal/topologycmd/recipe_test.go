package topologycmd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/commandtest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// The lines that apply prints for several main queues, pasted into one shell, give each queue its
// own messages back.
func TestRecreateSeveralMainQueues_OwnBroker(t *testing.T) {
	t.Parallel()
	b := brokertest.Shared(t)
	l := newLab(t, b.URI).under(cyclePolicy)
	l.environ[cli.EnvManagement] = b.ManagementURL
	paste := l.terminal(b)

	unlimited := amqp091.Table{amqp091.QueueTypeArg: "quorum"}
	if l.AtLeast(4, 0) { // purge refuses a queue with a limit before 4.3
		unlimited["x-delivery-limit"] = -1
	}
	prefix := l.queue()
	queues := []string{prefix, strings.ToUpper(prefix), prefix + ` it's/$(date) "2"`, prefix + `_it_s/$(date) "2"`}
	bodies := map[string][]string{}
	for _, queue := range queues {
		l.Declare(queue, unlimited)
		for i := range 3 {
			bodies[queue] = append(bodies[queue], fmt.Sprintf("%s %d", queue, i))
			l.Publish(queue, amqp091.Publishing{Body: []byte(bodies[queue][i]), DeliveryMode: amqp091.Persistent})
		}
		t.Cleanup(func() {
			l.Remove(queue+".retry", queue, queue+".dlq", queue+".retry.1s")
			l.Remove(queue + ".rejected.1s")
		})
	}

	arguments := []string{"apply"}
	for _, queue := range queues {
		arguments = append(arguments, "t="+queue)
	}
	d := l.run(arguments...)
	require.Equal(t, cli.ExitIncomplete, d.code, d.errs)
	recipe := regexp.MustCompile(`(?ms)^conflict: .*?\n(#.*?)\n(\n|\z)`)
	recipes := recipe.FindAllStringSubmatch(d.out, -1)
	require.Len(t, recipes, len(queues), d.out)
	var rest, restored []string
	for _, recipe := range recipes {
		assert.Regexp(t, `(?m)\t0$`, paste(recipe[1]), "the queue is empty")
		rest = append(rest, regexp.MustCompile(`(?m)^#   (rabbitmqctl .*)$`).FindStringSubmatch(recipe[1])[1])
		restored = append(restored, regexp.MustCompile(`(?m)^#   (amqpretry .*)$`).FindStringSubmatch(recipe[1])[1])
	}
	paste(strings.Join(rest, "\n"))
	for _, queue := range queues { // as its service does
		assert.False(t, l.has(queue))
		policy := config.Policy{Strategy: config.StrategyCycle, Retries: 3}
		l.Declare(queue, strategyPlan(t, queue, policy).MainArguments)
	}
	paste(strings.Join(restored, "\n"))
	for _, queue := range queues {
		assert.Equal(t, bodies[queue], rabbit.Bodies(l.Drain(queue)), queue)
	}
}

// terminal is a shell of somebody who works with the broker, in a folder of its own.
func (l *lab) terminal(b *brokertest.Broker) (paste func(lines string) string) {
	t := l.t
	bin, folder := t.TempDir(), t.TempDir()
	commandtest.Build(t, bin)
	script, err := filepath.Abs("../../../../scripts/broker")
	require.NoError(t, err)
	ctl := fmt.Sprintf("#!/bin/sh\n'%s' ctl '%s' \"$@\"\n", script, b.Dir)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "rabbitmqctl"), []byte(ctl), 0o755))

	return func(lines string) string {
		t.Helper()
		cmd := exec.Command("sh", "-e", "-c", lines)
		cmd.Dir, cmd.Env = folder, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		for key, value := range l.environ {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s\n%s", lines, out)

		return string(out)
	}
}
