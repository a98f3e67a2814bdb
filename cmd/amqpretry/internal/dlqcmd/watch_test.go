package dlqcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// output is what a command has printed so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
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

// last is the last whole line of JSON.
func (o *output) last() (line watchLine) {
	text := o.String()
	lines := strings.Split(text[:strings.LastIndexByte(text, '\n')+1], "\n")
	if len(lines) > 1 {
		_ = json.Unmarshal([]byte(lines[len(lines)-2]), &line)
	}
	return line
}

// watch runs the command until stop, which gives its exit code.
func (p *place) watch(terminal bool, args ...string) (out *output, stop func() int) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	out = &output{}
	code := make(chan int, 1)
	running := *p
	running.interruptible = ctx
	go func() {
		c, _, _ := running.run(func(s *cli.Session) { s.Out, s.OutIsTerminal = out, terminal },
			append([]string{"watch", p.main, "--interval", "1s", "--read-every", "1ms"}, args...)...)
		code <- c
	}()
	stop = sync.OnceValue(func() int { cancel(); return <-code })
	p.t.Cleanup(func() { stop() })

	return out, stop
}

func (o *output) eventually(t *testing.T, what func(watchLine) bool) {
	t.Helper()
	await.Until(t, func() bool { return what(o.last()) }, "%v", o)
}

func TestWatch(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 3)
	one, stopOne := p.watch(false, "--json")
	two, stopTwo := p.watch(true)
	one.eventually(t, func(l watchLine) bool { return l.Messages == 3 && l.Read == 3 })
	l := one.last()
	require.Len(t, l.Causes, 1)
	assert.Equal(t, 3, l.Causes[0].Messages)
	assert.Equal(t, "*cards.DeclinedError", l.Causes[0].ErrorType)
	assert.Zero(t, l.Arrived)

	p.fill(p.main, 3, 5)
	one.eventually(t, func(l watchLine) bool { return l.Messages == 5 && l.Read == 5 && l.Arrived == 2 })
	p.ok("replay", p.main, "--limit", "4", "--yes", "--no-undo")
	one.eventually(t, func(l watchLine) bool { return l.Messages == 1 && l.Read == 1 && l.Arrived == 2 })
	await.Until(t, func() bool {
		screens := strings.Split(two.String(), "\x1b[H\x1b[2J")
		last := screens[len(screens)-1]
		return strings.Contains(last, p.main+".dlq: 1 message read ") && strings.Contains(last, "^C ends")
	})
	assert.Equal(t, cli.ExitInterrupted, stopOne())
	assert.Equal(t, cli.ExitInterrupted, stopTwo())
	assert.Equal(t, `{"n":4}`, string(p.bodies(p.main+suffix, 1)[0].Body))
}

// It never reads a long queue, and counts it all the same.
func TestWatchALongQueue(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 60)
	out, _ := p.ok("watch", p.main, "--once", "--read-most", "50")
	assert.Contains(t, out, p.main+".dlq: 60 messages; causes not read: 60 messages, more than --read-most 50\n")
	for _, d := range p.bodies(p.main+suffix, 60) {
		require.False(t, d.Redelivered)
	}
}

// What another consumer holds comes back: that is no arrival.
func TestWatchWhileOthersRead(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 3)
	out, stop := p.watch(false, "--json")
	out.eventually(t, func(l watchLine) bool { return l.Read == 3 })
	channel := p.Channel()
	deliveries, err := channel.Consume(p.main+suffix, "", false, false, false, false, nil)
	require.NoError(t, err)
	for range 3 {
		<-deliveries
	}
	out.eventually(t, func(l watchLine) bool { return l.Consumers == 1 && l.Messages == 0 })
	require.NoError(t, channel.Close())
	out.eventually(t, func(l watchLine) bool { return l.Consumers == 0 && l.Messages == 3 })
	assert.Zero(t, out.last().Arrived)
	stop()
}

func TestWatchAQueueThatIsDeleted(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 3)
	out, stop := p.watch(false, "--json")
	out.eventually(t, func(l watchLine) bool { return l.Messages == 3 })
	p.Do(func(c *amqp091.Channel) error {
		_, err := c.QueueDelete(p.main+suffix, false, false, false)
		return err
	})
	out.eventually(t, func(l watchLine) bool { return l.Problem == "the queue does not exist" && !l.Since.IsZero() })
	code, _, errs := p.run(nil, "watch", p.main, "--once")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, p.main+suffix)
	p.Declare(p.main+suffix, amqp091.Table{amqp091.QueueTypeArg: "classic"})
	out.eventually(t, func(l watchLine) bool { return l.Problem == "" && l.Messages == 0 && l.Since.IsZero() })
	stop()
}

func TestWatchABrokerThatComesBack_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.StartWithManagement(t)
	p := onBroker(t, broker.URI)
	p.management = broker.ManagementURL
	p.fill(p.main, 0, 3)
	undo := p.file("undo.jsonl")
	p.ok("replay", p.main, "--limit", "2", "--undo", undo, "--yes")
	out, stop := p.watch(false, "--json", "--replayed", undo)
	out.eventually(t, func(l watchLine) bool {
		return l.Replay != nil && l.Replay.Sent == 2 && l.Replay.Pending != nil && *l.Replay.Pending == 2
	})
	assert.Zero(t, *out.last().Replay.Handled)

	// One of them is handled, the other one fails again.
	for i, d := range p.bodies(p.main, 2) {
		if i == 1 {
			p.Publish(p.main+suffix, amqp091.Publishing{Headers: d.Headers, Body: d.Body})
		}
	}
	out.eventually(t, func(l watchLine) bool {
		return l.Replay.FailedAgain == 1 && l.Replay.Handled != nil && *l.Replay.Handled == 1
	})

	broker.Stop()
	out.eventually(t, func(l watchLine) bool { return l.Problem != "" && !l.Since.IsZero() })
	broker.Start()
	out.eventually(t, func(l watchLine) bool { return l.Problem == "" && l.Messages == 2 })
	assert.Equal(t, cli.ExitInterrupted, stop())
}

func TestWatchFlags(t *testing.T) {
	t.Parallel()
	for text, args := range map[string][]string{
		"--interval: must be 1s":           {"--interval", "1ms"},
		"are for one QUEUE, got 2":         {"billing", "--dead-letter-queue", "x"},
		"no such file":                     {"--replayed", "nowhere.jsonl"},
		"--read-every must be more than 0": {"--read-every", "0s"},
	} {
		f := orders(deadLetters(2)...)
		code, _, errs := f.run(t, nil, append([]string{"watch", "orders"}, args...)...)
		assert.NotEqual(t, cli.ExitOK, code)
		assert.Contains(t, errs, text)
	}
}

func TestWatchOnce(t *testing.T) {
	t.Parallel()
	f := orders(deadLetters(2)...)
	code, out, errs := f.run(t, nil, "watch", "orders", "billing", "--once")
	assert.Equal(t, cli.ExitOK, code, errs)
	assert.Contains(t, out, "orders.dlq: 2 messages\nMESSAGES  FINGERPRINT")
	assert.Contains(t, out, "billing.dlq: 2 messages\n")
}
