package chaos

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// broker is the private RabbitMQ of a run. Unlike those of brokertest its methods return errors, as
// they are called while others wait.
type broker struct {
	*brokertest.Broker
	version string
	// confirmTimeout is after how long a queue that dead-letters at least once tries again.
	confirmTimeout time.Duration
}

func startBroker(t *testing.T) *broker {
	t.Helper()
	// RabbitMQ's own 3 minutes would be most of the time of a run.
	timeout, err := time.ParseDuration(cmp.Or(os.Getenv("CONFIRM_TIMEOUT"), "5s"))
	require.NoError(t, err, "CONFIRM_TIMEOUT")
	b := &broker{Broker: brokertest.Start(t, brokertest.ConfirmTimeout(t, timeout)), confirmTimeout: timeout}
	b.version = rabbit.New(t, b.URI).Version()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last errors in the log of RabbitMQ:\n%s", b.lastErrors())
		}
	})

	return b
}

// lastErrors are the last lines of RabbitMQ's log that are errors, with what belongs to them.
func (b *broker) lastErrors() string {
	files, _ := filepath.Glob(filepath.Join(b.Dir, "log", "*@*.log"))
	var lines []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "[error]") {
				lines = append(lines, line)
			}
		}
	}

	return strings.Join(lines[max(0, len(lines)-200):], "")
}

// script runs scripts/broker.
func (b *broker) script(command string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("../../scripts/broker", append([]string{command, b.Dir}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &stdout, &stderr, os.Environ()
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("scripts/broker %s %s: %w\n%s", command, strings.Join(args, " "), err, stderr.String())
	}

	return stdout.String(), nil
}

func (b *broker) ctl(args ...string) (string, error) { return b.script("ctl", args...) }

// channel opens one on a connection of its own.
func (b *broker) channel(use func(*amqp091.Channel) error) error {
	conn, err := amqp091.DialConfig(b.URI, amqp091.Config{Dial: amqp091.DefaultDial(5 * time.Second)})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}

	return use(ch)
}

// written returns when all quorum queues that there are can be told from their log. One whose node
// is killed before never has a leader again (RabbitMQ 3.10.8): its first entry is lost, by which it
// would know that it is alone. All write to one log, in order.
func (b *broker) written() error {
	return b.channel(func(ch *amqp091.Channel) error {
		const last = "the-last-one"
		if _, err := ch.QueueDeclare(last, true, false, false, false,
			amqp091.Table{"x-queue-type": "quorum"}); err != nil {
			return err
		}
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirmation, err := ch.PublishWithDeferredConfirm("", last, false, false,
			amqp091.Publishing{DeliveryMode: amqp091.Persistent})
		if err != nil {
			return err
		}
		if !confirmation.Wait() {
			return errors.New("RabbitMQ has refused a message")
		}
		_, err = ch.QueueDelete(last, false, false, false)

		return err
	})
}

// depths are all messages of all queues, also those that are delivered, and those that a queue
// holds to dead-letter them.
func (b *broker) depths() (map[string]int, error) {
	out, err := b.ctl("list_queues", "name", "messages")
	if err != nil {
		return nil, err
	}
	depths := map[string]int{}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		name, n, _ := strings.Cut(line, "\t")
		if depth, err := strconv.Atoi(strings.TrimSpace(n)); err == nil {
			depths[name] = depth
		}
	}
	for _, t := range TopicsOn(b.version) {
		if _, ok := depths[t.Name]; !ok {
			return nil, fmt.Errorf("queue %s is not in the list:\n%s", t.Name, out)
		}
	}

	return depths, nil
}

// quorumServer stops or restarts the only member of a quorum queue: stopped, it is a queue without
// leader, which answers nothing.
func (b *broker) quorumServer(action, queue string) error {
	_, err := b.ctl("eval", fmt.Sprintf(`ok = ra:%s_server(quorum_queues, {'%%2F_%s', node()}).`, action, queue))
	return err
}

// drain takes all dead letters out of a queue, which may have been deleted and not been needed
// since. It acknowledges them, unlike rabbit.Drain, as the broker may die meanwhile.
func (b *broker) drain(topic string) ([]Letter, error) {
	var letters []Letter
	err := b.channel(func(ch *amqp091.Channel) error {
		if err := ch.Qos(500, 0, false); err != nil {
			return err
		}
		deliveries, err := ch.Consume(deadLetterQueue(topic), "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for {
			select {
			case d, ok := <-deliveries:
				if !ok {
					return fmt.Errorf("the consumer of %s was cancelled", deadLetterQueue(topic))
				}
				letters = append(letters, Letter{topic, d})
				if err := d.Ack(false); err != nil {
					return err
				}
			case <-time.After(2 * time.Second):
				// it has read the acks
				_, err := ch.QueueDeclarePassive(deadLetterQueue(topic), true, false, false, false, nil)
				return err
			}
		}
	})

	if missing := (*amqp091.Error)(nil); errors.As(err, &missing) && missing.Code == amqp091.NotFound {
		err = nil
	}

	return letters, err
}
