package tools

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/commandtest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

const (
	browsedDeadLetters = 200
	// killedBrowses is how often a process that browses is killed: one in so many.
	killedBrowses = 100
)

// Any number of browses leaves every message where it is. BROWSES is how many, at each of the
// queues.
func TestBrowses(t *testing.T) {
	t.Parallel()
	random, seed := env.Random(t)
	browses := env.Int(t, "BROWSES", 50)

	all := make([]*browsing, 0, 2)
	t.Run("side by side", func(t *testing.T) {
		for _, deadType := range []string{"quorum", "classic"} {
			l := &browsing{deadType: deadType, random: rand.New(rand.NewPCG(random.Uint64(), 0)),
				made: map[string]int{}}
			all = append(all, l)
			t.Run(deadType, func(t *testing.T) {
				t.Parallel()
				l.all(t, browses)
			})
		}
	})

	table, version := report.Table{Head: []string{
		"dead-letter queue", "browses", "seconds", "messages", "in the end", "in their order after every browse",
		"of the browses killed", "highest x-delivery-count", "highest x-acquired-count", "browses by kind",
	}}, ""
	for _, l := range all {
		version = l.version
		table.Add(
			l.deadType, l.browses, fmt.Sprintf("%.0f", l.took.Seconds()), browsedDeadLetters, l.left, l.inOrder,
			l.made["killed"], l.deliveries, l.acquired, l.spell(),
		)
	}
	table.Title = fmt.Sprintf("Browses of dead-letter queues: RabbitMQ %s, SEED=%d", version, seed)
	report.Write(t, table.String())
}

// browsing is many browses of one queue.
type browsing struct {
	deadType string
	random   *rand.Rand
	*queues
	order []string // bodies, the oldest first; nil when a kill may have changed it

	version              string
	browses, left        int
	took                 time.Duration
	inOrder              bool
	made                 map[string]int // browses by kind
	deliveries, acquired string
}

// kinds of browses, the more frequent ones more often.
var kinds = []string{"browse", "browse", "browse", "leave", "leave", "leave", "interrupt", "stat", "get", "get",
	"export"}

func (l *browsing) spell() string {
	var parts []string
	for _, kind := range []string{"browse", "leave", "interrupt", "stat", "get", "export", "killed"} {
		parts = append(parts, fmt.Sprintf("%s %d", kind, l.made[kind]))
	}

	return strings.Join(parts, ", ")
}

func (l *browsing) all(t *testing.T, browses int) {
	t.Helper()
	l.queues = newQueues(t, l.deadType)
	l.version = l.Version()
	l.fill(browsedDeadLetters)
	l.order = deadletter.Bodies(browsedDeadLetters)

	began := time.Now()
	for n := range browses {
		kind := kinds[l.random.IntN(len(kinds))]
		if n%killedBrowses == killedBrowses/2-1 {
			kind = "killed"
		}
		if l.order == nil {
			kind = "browse" // takes the order anew
		}
		l.one(kind)
		l.made[kind]++
		l.browses++
		l.await(l.dead, browsedDeadLetters)
	}
	l.browse()
	l.took = time.Since(began)

	deliveries, acquired := int64(0), int64(0)
	in := l.drained(l.dead)
	l.left = len(in)
	require.Equal(t, l.order, rabbit.Bodies(in), "and as a consumer finds them")
	for _, d := range in {
		deliveries, acquired = max(deliveries, count(d, "x-delivery-count")),
			max(acquired, count(d, "x-acquired-count"))
	}
	l.deliveries, l.acquired = strconv.FormatInt(deliveries, 10), strconv.FormatInt(acquired, 10)
	l.inOrder = !t.Failed()
}

func count(d amqp091.Delivery, header string) int64 {
	n, _ := d.Headers[header].(int64)
	return n
}

func (l *browsing) one(kind string) {
	l.t.Helper()
	ctx := l.t.Context()
	switch kind {
	case "browse":
		l.browse()
	case "leave": // in the middle
		n, last := 0, 1+l.random.IntN(browsedDeadLetters)
		for letter, err := range l.queue.Browse(ctx, dlq.Filter{}) {
			require.NoError(l.t, err)
			require.Equal(l.t, l.order[n], string(letter.Message.Body))
			if n++; n == last {
				break
			}
		}
	case "interrupt":
		l.interrupt(ctx)
	case "stat":
		stat, err := l.queue.Stat(ctx, dlq.Filter{Headers: map[string]string{"tenant": tenants[1]}})
		require.NoError(l.t, err)
		require.Equal(l.t, [3]int{browsedDeadLetters, browsedDeadLetters, browsedDeadLetters / len(tenants)},
			[3]int{stat.Ready, stat.Seen, stat.Matched})
	case "get":
		n := l.random.IntN(browsedDeadLetters)
		letter, err := l.queue.Get(ctx, uuid(n))
		require.NoError(l.t, err)
		require.Equal(l.t, deadletter.Body(n), string(letter.Message.Body))
		require.Equal(l.t, l.order[letter.Position-1], string(letter.Message.Body))
	case "export":
		var out bytes.Buffer
		exported, err := l.queue.Export(ctx, &out, dlq.ExportOptions{})
		require.NoError(l.t, err)
		require.Equal(l.t, browsedDeadLetters, exported.Done)
		require.Equal(l.t, browsedDeadLetters, strings.Count(out.String(), "\n"))
	case "killed":
		l.killed()
	}
}

// browse reads all of them, and checks their order.
func (l *browsing) browse() {
	l.t.Helper()
	found, different := make([]string, 0, browsedDeadLetters), map[string]bool{}
	for letter, err := range l.queue.Browse(l.t.Context(), dlq.Filter{}) {
		require.NoError(l.t, err)
		require.Equal(l.t, len(found)+1, letter.Position)
		found = append(found, string(letter.Message.Body))
		different[string(letter.Message.Body)] = true
	}
	require.Len(l.t, different, browsedDeadLetters)
	if l.order == nil {
		l.order = found
	}
	require.Equal(l.t, l.order, found, "after %d browses", l.browses)
}

// interrupt cancels a browse, which goes on a little for the sake of the order.
func (l *browsing) interrupt(ctx context.Context) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n, last := 0, 1+l.random.IntN(browsedDeadLetters)
	for letter, err := range l.queue.Browse(ctx, dlq.Filter{}) {
		if err != nil {
			require.ErrorIs(l.t, err, context.Canceled)
			break
		}
		require.Equal(l.t, l.order[n], string(letter.Message.Body))
		if n++; n == last {
			cancel()
		}
	}
}

// killed is a process that holds messages when it is killed: nobody reads what it writes.
func (l *browsing) killed() {
	l.t.Helper()
	cmd := exec.Command(commandtest.Path(l.t), "dlq", "export", l.main)
	cmd.Env = append(cmd.Environ(), "AMQP_URI="+brokertest.URI(l.t), "AMQPRETRY_NO_DELIVERY_LIMIT_POLICY=yes")
	out, err := cmd.StdoutPipe()
	require.NoError(l.t, err)
	require.NoError(l.t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	await.Until(l.t, func() bool { return l.state(l.dead).Consumers > 0 }, "the process browses")
	_, _ = io.CopyN(io.Discard, out, l.random.Int64N(60_000))
	l.order = nil
}
