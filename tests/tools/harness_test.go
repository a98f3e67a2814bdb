package tools

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// binary is the command, built once for all tests.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "amqpretry-tools-")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		binary = filepath.Join(dir, "amqpretry")
		if out, err := exec.Command("go", "build", "-o", binary, "github.com/amqpretry/watermill-retry/cmd/amqpretry").CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%v\n%s", err, out))
		}
		return m.Run()
	}())
}

// number is one of the environment.
func number[N int | uint64](t *testing.T, name string, without N) N {
	t.Helper()
	given := os.Getenv(name)
	if given == "" {
		return without
	}
	n, err := strconv.ParseUint(given, 10, 63)
	require.NoError(t, err, name)

	return N(n)
}

// seeded makes what is random in a test, from SEED if that is set, and says from what.
func seeded(t *testing.T) (*rand.Rand, uint64) {
	t.Helper()
	seed := number(t, "SEED", rand.Uint64N(1_000_000))
	t.Logf("SEED=%d", seed)

	return rand.New(rand.NewPCG(seed, 0)), seed
}

// report logs a table in Markdown, and adds it to the file that REPORT names.
func report(t *testing.T, title string, head []string, rows [][]string) {
	t.Helper()
	lines := []string{title, "", "| " + strings.Join(head, " | ") + " |", "|" + strings.Repeat("---|", len(head))}
	for _, row := range rows {
		lines = append(lines, "| "+strings.Join(row, " | ")+" |")
	}
	text := strings.Join(lines, "\n") + "\n"
	t.Log("\n" + text)
	path := os.Getenv("REPORT")
	if path == "" {
		return
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	_, err = file.WriteString(text + "\n")
	require.NoError(t, errors.Join(err, file.Close()))
}

// queues are a main queue, its dead-letter queue, and one more.
type queues struct {
	t          *testing.T
	main, dead string
	parked     []string
	connection *amqp091.Connection
	channel    *amqp091.Channel
	client     *dlq.Client
	queue      *dlq.Queue
}

// newQueues declares them; deadType is that of the dead-letter queue.
func newQueues(t *testing.T, deadType string) *queues {
	t.Helper()
	uri := brokertest.URI(t)
	connection, err := amqp091.Dial(uri)
	require.NoError(t, err)
	channel, err := connection.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.Confirm(false))
	client, err := dlq.Open(t.Context(), dlq.Config{URI: uri, NoDeliveryLimitPolicy: true})
	require.NoError(t, err)

	main := "tools-" + watermill.NewShortUUID()
	plan, err := topology.New(main, config.Policy{Mode: config.ModeDeadLetter, Scope: config.ScopeShared}, topology.Names{})
	require.NoError(t, err)
	dead := plan.Queues[0].Arguments
	if deadType == amqp091.QueueTypeClassic {
		dead = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeClassic}
	}
	q := &queues{t: t, main: main, dead: main + ".dlq", connection: connection, channel: channel, client: client, queue: client.Queue(main)}
	for name, arguments := range map[string]amqp091.Table{
		q.main: {amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}, q.dead: dead,
	} {
		_, err := channel.QueueDeclare(name, true, false, false, false, arguments)
		require.NoError(t, err)
	}
	t.Cleanup(q.remove)

	return q
}

// park declares the queue to which a call moves messages.
func (q *queues) park(call int) string {
	q.t.Helper()
	name := q.main + ".parked-" + strconv.Itoa(call)
	_, err := q.channel.QueueDeclare(name, true, false, false, false, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	require.NoError(q.t, err)
	q.parked = append(q.parked, name)

	return name
}

func (q *queues) remove() {
	for _, name := range append(q.parked, q.main, q.dead) {
		_, _ = q.channel.QueueDelete(name, false, false, false)
	}
	_ = q.client.Close()
	_ = q.connection.Close()
}

// rabbitmq is the broker's version.
func (q *queues) rabbitmq() string { return fmt.Sprint(q.connection.Properties["version"]) }

// body is what tells the messages from each other.
func body(n int) string { return fmt.Sprintf(`{"n":%d}`, n) }

func uuid(n int) string { return fmt.Sprintf("uuid-%d-", n) }

// tenants are the values of a header, by which half of the messages match.
var tenants = []string{"a", "b"}

// headerCall is where an import's file names the call that imports it.
const headerCall = "call"

func callName(call int) string { return fmt.Sprintf("call-%03d", call) }

// fill puts n letters into the dead-letter queue, as the retrier would.
func (q *queues) fill(n int) {
	q.t.Helper()
	died := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	confirmations := make([]*amqp091.DeferredConfirmation, n)
	for i := range n {
		state := wire.State{
			Count: header.CountDead, Attempts: 4, Queue: q.main, Topic: q.main, Handler: "charge", FirstFailure: died, LastFailure: died.Add(time.Duration(i) * time.Second),
			Arrival: wire.NewArrival("events", "order.created", "", "", ""), Reason: retry.ReasonExhausted, Error: "card declined", ErrorType: "*cards.DeclinedError",
		}
		headers := amqp091.Table{"_watermill_message_uuid": uuid(i), "tenant": tenants[i%len(tenants)], headerCall: callName(0)}
		for key, value := range state.Headers(uuid(i)) {
			headers[key] = value
		}
		var err error
		confirmations[i], err = q.channel.PublishWithDeferredConfirm("", q.dead, true, false, amqp091.Publishing{
			DeliveryMode: amqp091.Persistent, ContentType: "application/json", Headers: headers, Body: []byte(body(i)),
		})
		require.NoError(q.t, err)
	}
	for _, confirmation := range confirmations {
		acked, err := confirmation.WaitContext(q.t.Context())
		require.NoError(q.t, err)
		require.True(q.t, acked)
	}
	q.await(q.dead, n)
}

// state of a queue: messages that it has to give, and consumers.
func (q *queues) state(name string) amqp091.Queue {
	q.t.Helper()
	found, err := q.channel.QueueDeclarePassive(name, true, false, false, false, nil)
	require.NoError(q.t, err)

	return found
}

// patience is how long a broker may take to count what it has, on a busy machine.
const patience = 30 * time.Second

// await waits until a queue has so many messages and nobody consumes it.
func (q *queues) await(name string, messages int) {
	q.t.Helper()
	require.Eventually(q.t, func() bool {
		found := q.state(name)
		return found.Messages == messages && found.Consumers == 0
	}, patience, time.Millisecond, "%d messages in %s, and no consumer", messages, name)
}

// drained takes all messages out of a queue, in their order.
func (q *queues) drained(name string) []amqp091.Delivery {
	q.t.Helper()
	all, err := brokertest.Drain(q.channel, name)
	require.NoError(q.t, err)

	return all
}

// command is a run of the built command.
type command struct {
	*exec.Cmd
	out   *output
	ended chan struct{}
}

// output is what a process writes, which may be looked at while it does.
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

// start runs the command in a folder.
func start(t *testing.T, dir string, args ...string) *command {
	t.Helper()
	c := &command{Cmd: exec.Command(binary, args...), out: &output{}, ended: make(chan struct{})}
	c.Dir, c.Stdout, c.Stderr = dir, c.out, c.out
	c.Env = append(os.Environ(), "AMQP_URI="+brokertest.URI(t), "AMQPRETRY_NO_DELIVERY_LIMIT_POLICY=yes")
	require.NoError(t, c.Start())
	go func() {
		_ = c.Wait() // what it says is in ProcessState
		close(c.ended)
	}()
	t.Cleanup(c.kill)

	return c
}

// kill ends it as a crash would (SIGKILL), and waits until it is gone.
func (c *command) kill() {
	_ = c.Process.Kill()
	<-c.ended
}

// after waits for a time, or until it has ended: false.
func (c *command) after(d time.Duration) bool {
	select {
	case <-c.ended:
		return false
	case <-time.After(d):
		return true
	}
}
