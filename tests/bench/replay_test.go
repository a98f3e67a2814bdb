package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/commandtest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/retry"
)

// BenchmarkReplay sends dead letters back to their main queue, and compares that with what it
// cannot do without: publishing the same messages with the broker's confirmation.
func BenchmarkReplay(b *testing.B) {
	messages := report.Scaled(b, 100_000, 1000)
	t := &report.Table{
		Title: fmt.Sprintf("Replay of %d dead letters", messages),
		Notes: []string{fmt.Sprintf("Raw: amqp091-go publishes the same messages (%d bytes of body and the headers "+
			"of a dead letter) to an empty quorum queue, mandatory and confirmed, %d on their way at a time. The "+
			"others take them out of a quorum dead-letter queue, and put them into an empty quorum queue: the "+
			"library, the library with an undo file, and the command with an undo file, from its start to its end. "+
			"Taking out: amqp091-go takes the same messages out of the quorum dead-letter queue, %d unacknowledged "+
			"at a time, and does nothing with them. Who publishes all and then takes all out, on a machine that does "+
			"one thing at a time, has the rate of both: what a replay would reach that costs nothing itself. Peak "+
			"memory is what heap and stacks had in use (sampled every 50 ms, after a collection before the run), of "+
			"the command all that the process had resident.", len(letterBody(0)), rawWindow, takeWindow)},
		Head: []string{"way", "messages per second", "of raw", "of both", "of the loop", "peak memory (MiB)"},
	}
	binary := commandtest.Build(b, b.TempDir())

	b.Run("replay", func(b *testing.B) {
		all := report.Compare(b,
			contender{"raw", func(b *testing.B) figures { return publishRaw(b, messages) }},
			contender{"taking out", func(b *testing.B) figures { return takeOut(b, messages) }},
			contender{"raw loop", func(b *testing.B) figures { return loopRaw(b, messages) }},
			contender{"library", func(b *testing.B) figures { return replay(b, messages, false) }},
			contender{"library with undo file", func(b *testing.B) figures { return replay(b, messages, true) }},
			contender{"command with undo file", func(b *testing.B) figures {
				return replayByCommand(b, binary, messages)
			}},
		)
		both := 1 / (1/all.Median("raw", "msg/s") + 1/all.Median("taking out", "msg/s"))
		for _, way := range []string{"raw", "taking out", "raw loop", "library", "library with undo file",
			"command with undo file"} {
			rate := all.Median(way, "msg/s")
			t.Add(way, rate, all.Ratio(way, "raw", "msg/s"), rate/both, all.Ratio(way, "raw loop", "msg/s"),
				all.Median(way, "MiB"))
		}
	})
	t.WriteOn(b, brokertest.URI(b))
}

// rawWindow is how many are on their way at a time: as many as in a replay.
const rawWindow = 256

// deadLetter is the i-th of 300 bytes and three attempts, as the retrier dead-letters it.
func deadLetter(queue string, i int) amqp091.Publishing {
	state := deadletter.State(queue, 0)
	state.LastFailure = deadletter.Died.Add(time.Duration(i) * time.Millisecond)
	state.Error, state.History = "card declined", nil
	for n := range 3 {
		failed := retry.FailedCall{Number: n + 1, At: deadletter.Died, Error: "timeout", Type: "*url.Error"}
		state.History = append(state.History, failed)
	}

	return deadletter.Message(state, "uuid-"+strconv.Itoa(i), string(letterBody(i)))
}

var filling = strings.Repeat("x", 300)

func letterBody(i int) []byte { return fmt.Appendf(nil, `{"n":%08d,"text":"%s"}`, i, filling[:275]) }

// letterQueues are a main queue with its dead-letter queue.
type letterQueues struct {
	main, dead string
	client     *rabbit.Client
}

func newLetterQueues(b *testing.B) letterQueues {
	b.Helper()
	q := letterQueues{main: "bench-" + watermill.NewShortUUID(), client: newClient(b)}
	dead, deadArguments := deadletter.Queue(b, q.main)
	q.dead = dead
	q.client.Declare(q.main, arguments("quorum"))
	q.client.Declare(q.dead, deadArguments)

	return q
}

// withDeadLetters are queues of which the one has so many messages.
func withDeadLetters(b *testing.B, messages int) letterQueues {
	b.Helper()
	q := newLetterQueues(b)
	publishDeadLetters(b, q.dead, q.main, messages)
	q.client.Has(q.dead, messages)

	return q
}

func (q letterQueues) remove() { q.client.Remove("", q.main, q.dead) }

// figuresOf are those of a way that has handled so many messages since it began.
func figuresOf(messages int, took time.Duration, memory float64) figures {
	return figures{"msg/s": float64(messages) / took.Seconds(), "MiB": memory}
}

// publishDeadLetters publishes messages as fast as their confirms come.
func publishDeadLetters(b *testing.B, queue, mainQueue string, messages int) time.Duration {
	b.Helper()
	letters := make([]amqp091.Publishing, messages)
	for i := range letters {
		letters[i] = deadLetter(mainQueue, i)
	}
	channel := open(b)
	defer channel.Close()
	require.NoError(b, channel.Confirm(false))
	var returned atomic.Int64
	returns := channel.NotifyReturn(make(chan amqp091.Return, rawWindow))
	go func() {
		for range returns {
			returned.Add(1)
		}
	}()

	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	began := time.Now()
	var window [rawWindow]*amqp091.DeferredConfirmation
	for i := range messages + rawWindow {
		var err error
		if slot := window[i%rawWindow]; slot != nil {
			acked, err := slot.WaitContext(ctx)
			require.NoError(b, err)
			require.True(b, acked)
		}
		window[i%rawWindow] = nil
		if i < messages {
			window[i%rawWindow], err = channel.PublishWithDeferredConfirm("", queue, true, false, letters[i])
			require.NoError(b, err)
		}
	}
	took := time.Since(began)
	require.Zero(b, returned.Load(), "messages that the broker has returned")

	return took
}

func publishRaw(b *testing.B, messages int) figures {
	b.Helper()
	q := newLetterQueues(b)
	defer q.remove()
	took := publishDeadLetters(b, q.main, q.main, messages)
	q.client.Has(q.main, messages)

	return figuresOf(messages, took, 0)
}

// takeWindow is how many a replay may hold of small messages.
const takeWindow = 1000

// takeOut consumes and acknowledges, 64 at a time as a replay does.
func takeOut(b *testing.B, messages int) figures {
	b.Helper()
	q := withDeadLetters(b, messages)
	defer q.remove()
	channel := open(b)
	defer channel.Close()
	require.NoError(b, channel.Qos(takeWindow, 0, false))
	began := time.Now()
	deliveries, err := channel.Consume(q.dead, "", false, false, false, false, nil)
	require.NoError(b, err)
	for n := 1; n <= messages; n++ {
		d, ok := <-deliveries
		require.True(b, ok)
		if n%64 == 0 || n == messages {
			require.NoError(b, d.Ack(true))
		}
	}
	q.client.Has(q.dead, 0)

	return figuresOf(messages, time.Since(began), 0)
}

// loopRaw is what somebody would write who wants no more than that no message is lost: it consumes,
// publishes with confirms, and acknowledges 64 at a time behind them.
func loopRaw(b *testing.B, messages int) figures {
	b.Helper()
	q := withDeadLetters(b, messages)
	defer q.remove()
	in, out := open(b), open(b)
	defer in.Close()
	defer out.Close()
	require.NoError(b, in.Qos(takeWindow, 0, false))
	require.NoError(b, out.Confirm(false))

	began := time.Now()
	deliveries, err := in.Consume(q.dead, "", false, false, false, false, nil)
	require.NoError(b, err)
	var window [rawWindow]*amqp091.DeferredConfirmation
	var tags [rawWindow]uint64
	for i := range messages + rawWindow {
		slot := i % rawWindow
		if confirm := window[slot]; confirm != nil {
			require.True(b, confirm.Wait())
			if n := i - rawWindow + 1; n%64 == 0 || n == messages {
				require.NoError(b, in.Ack(tags[slot], true))
			}
		}
		if window[slot] = nil; i >= messages {
			continue
		}
		d, ok := <-deliveries
		require.True(b, ok)
		tags[slot] = d.DeliveryTag
		window[slot], err = out.PublishWithDeferredConfirm("", q.main, true, false, amqp091.Publishing{
			Headers: d.Headers, ContentType: d.ContentType, DeliveryMode: d.DeliveryMode, MessageId: d.MessageId,
			Timestamp: d.Timestamp, Body: d.Body,
		})
		require.NoError(b, err)
	}
	took := time.Since(began)
	q.client.Has(q.main, messages)
	q.client.Has(q.dead, 0)

	return figuresOf(messages, took, 0)
}

func replay(b *testing.B, messages int, undo bool) figures {
	b.Helper()
	q := withDeadLetters(b, messages)
	defer q.remove()

	client, err := dlq.Open(b.Context(), dlq.Config{URI: brokertest.URI(b), NoDeliveryLimitPolicy: true})
	require.NoError(b, err)
	defer func() { _ = client.Close() }()
	plan := dlq.Plan{Kind: dlq.Replay}
	if undo {
		file, err := os.Create(filepath.Join(b.TempDir(), "undo.jsonl"))
		require.NoError(b, err)
		defer func() { _ = file.Close() }()
		plan.Undo = file
	}

	peak := peakOfHeap()
	began := time.Now()
	report, err := client.Queue(q.main).Run(b.Context(), plan)
	took := time.Since(began)
	memory := peak()
	require.NoError(b, err)
	require.Equal(b, messages, report.Done)
	q.client.Has(q.main, messages)
	q.client.Has(q.dead, 0)

	return figuresOf(messages, took, memory)
}

// peakOfHeap samples what heap and stacks take until the function that it returns is called, which
// gives the highest, in MiB.
func peakOfHeap() func() float64 {
	runtime.GC()
	stop, highest := make(chan struct{}), make(chan uint64)
	go func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		var most uint64
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapInuse+m.StackInuse)
			select {
			case <-ticker.C:
			case <-stop:
				highest <- most
				return
			}
		}
	}()

	return func() float64 {
		close(stop)
		return float64(<-highest) / (1 << 20)
	}
}

func replayByCommand(b *testing.B, binary string, messages int) figures {
	b.Helper()
	q := withDeadLetters(b, messages)
	defer q.remove()

	var out bytes.Buffer
	cmd := exec.CommandContext(b.Context(), binary, "dlq", "replay", q.main, "--yes")
	cmd.Dir, cmd.Stdout, cmd.Stderr = b.TempDir(), &out, &out
	cmd.Env = append(os.Environ(), "AMQP_URI="+brokertest.URI(b), "AMQPRETRY_NO_DELIVERY_LIMIT_POLICY=yes")
	began := time.Now()
	require.NoError(b, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	resident, err := 0.0, error(nil)
	for ticker := time.Tick(20 * time.Millisecond); ; {
		select {
		case err = <-ended:
		case <-ticker:
			resident = max(resident, highWater(cmd.Process.Pid))
			continue
		}
		break
	}
	took := time.Since(began)
	require.NoError(b, err, out.String())
	q.client.Has(q.main, messages)
	q.client.Has(q.dead, 0)

	return figuresOf(messages, took, resident)
}

// highWater is the most that a process has had resident, in MiB; 0 where the system does not tell.
func highWater(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && fields[0] == "VmHWM:" {
			kib, _ := strconv.ParseFloat(fields[1], 64)
			return kib / 1024
		}
	}

	return 0
}
