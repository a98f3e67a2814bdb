package tools

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/commandtest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

func TestMain(m *testing.M) { commandtest.Main(m) }

// queues are a main queue, its dead-letter queue, and one more.
type queues struct {
	*rabbit.Client
	t          *testing.T
	main, dead string
	parked     []string
	connection *amqp091.Connection // stays open, as tests browse very often
	channel    *amqp091.Channel
	client     *dlq.Client
	queue      *dlq.Queue
}

// newQueues declares them; deadType is that of the dead-letter queue.
func newQueues(t *testing.T, deadType string) *queues {
	t.Helper()
	uri, main := brokertest.URI(t), "tools-"+watermill.NewShortUUID()
	q := &queues{Client: rabbit.New(t, uri), t: t, main: main}
	var arguments amqp091.Table
	q.dead, arguments = deadletter.Queue(t, main)
	if deadType == amqp091.QueueTypeClassic {
		arguments = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeClassic}
	}
	q.Declare(q.main, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	q.Declare(q.dead, arguments)

	var err error
	q.client, err = dlq.Open(t.Context(), dlq.Config{URI: uri, NoDeliveryLimitPolicy: true})
	require.NoError(t, err)
	q.connection = q.Dial()
	q.channel, err = q.connection.Channel()
	require.NoError(t, err)
	q.queue = q.client.Queue(main)
	t.Cleanup(q.remove)

	return q
}

// remove is for tests that make many of them: it does not wait until the test ends.
func (q *queues) remove() {
	q.Remove("", append(q.parked, q.main, q.dead)...)
	_, _ = q.client.Close(), q.connection.Close()
}

// park declares the queue to which a call moves messages.
func (q *queues) park(call int) string {
	q.t.Helper()
	name := q.main + ".parked-" + strconv.Itoa(call)
	q.Declare(name, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum})
	q.parked = append(q.parked, name)

	return name
}

func uuid(n int) string { return fmt.Sprintf("uuid-%d-", n) }

// tenants are the values of a header, by which half of the messages match.
var tenants = []string{"a", "b"}

// headerCall is where an import's file names the call that imports it.
const headerCall = "call"

func callName(call int) string { return fmt.Sprintf("call-%03d", call) }

// fill puts n letters into the dead-letter queue, as the retrier would.
func (q *queues) fill(n int) {
	q.t.Helper()
	letters := make([]amqp091.Publishing, n)
	for i := range letters {
		letters[i] = deadletter.Message(deadletter.State(q.main, i), uuid(i), deadletter.Body(i))
		letters[i].Headers["tenant"], letters[i].Headers[headerCall] = tenants[i%len(tenants)], callName(0)
	}
	q.Publish(q.dead, letters...)
	q.await(q.dead, n)
}

// state of a queue: messages that it has to give, and consumers.
func (q *queues) state(name string) amqp091.Queue {
	q.t.Helper()
	found, err := q.channel.QueueDeclarePassive(name, true, false, false, false, nil)
	require.NoError(q.t, err)

	return found
}

// await waits until a queue has so many messages and nobody consumes it.
func (q *queues) await(name string, messages int) {
	q.t.Helper()
	await.Until(q.t, func() bool {
		found := q.state(name)
		return found.Messages == messages && found.Consumers == 0
	}, "%d messages in %s, and no consumer", messages, name)
}

// drained takes all messages out of a queue, in their order.
func (q *queues) drained(name string) []amqp091.Delivery {
	q.t.Helper()
	return drain.All(q.t, q.Client, name)
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
	c := &command{Cmd: exec.Command(commandtest.Path(t), args...), out: &output{}, ended: make(chan struct{})}
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
