package dlq_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

func TestPurge(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(100)
	var archive bytes.Buffer
	report, err := f.queue.Run(t.Context(), dlq.Plan{
		Kind: dlq.Purge, Filter: dlq.Filter{OlderThan: time.Hour}, Limit: 40,
		Undo: &archive})
	require.NoError(t, err)
	assert.Equal(t, 40, report.Done)
	f.Has(f.queue.Name(), 60)

	back, err := f.queue.Import(t.Context(), &archive, dlq.ImportOptions{})
	require.NoError(t, err)
	assert.Equal(t, 40, back.Done)
	assert.Len(t, f.drained(f.queue.Name(), 100), 100)
}

// full is a file on a disk that has room for so many bytes more. Of a write that is larger it takes
// a part.
type full struct {
	*os.File
	room int
}

var errFull = errors.New("no space left on device")

func (f *full) Write(p []byte) (int, error) {
	n, err := f.File.Write(p[:min(len(p), f.room)])
	f.room -= n
	if err == nil && n < len(p) {
		err = errFull
	}

	return n, err
}

// onFullDisk is a new file with room for so many bytes. lines reads the ends of its lines.
func onFullDisk(t *testing.T, room int) (disk *full, lines func() (whole int, torn string)) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "undo.jsonl"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })

	return &full{file, room}, func() (int, string) {
		text, err := os.ReadFile(file.Name())
		require.NoError(t, err)
		all := strings.SplitAfter(string(text), "\n")
		return len(all) - 1, all[len(all)-1]
	}
}

func TestNothingIsTakenWithoutItsUndo(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	const deadLetters, room = 1000, 200_001
	f.fill(deadLetters)
	disk, lines := onFullDisk(t, room)
	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Purge, Undo: disk})
	require.ErrorIs(t, err, errFull)
	assert.Equal(t, 1, strings.Count(err.Error(), errFull.Error()), "once: %v", err)
	assert.Positive(t, report.Done)
	f.Has(f.queue.Name(), deadLetters-report.Done)
	whole, torn := lines()
	assert.Equal(t, whole, report.Done+report.Unsettled, "the file has those that are gone, and those that are told")
	assert.Empty(t, torn)

	disk, lines = onFullDisk(t, room)
	left := deadLetters - report.Done
	replayed, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Undo: disk})
	require.ErrorIs(t, err, errFull)
	whole, torn = lines()
	assert.LessOrEqual(t, replayed.Done, whole)
	assert.Empty(t, torn)
	f.Has(f.queue.Name(), left-replayed.Done)
	assert.Equal(t, replayed.Done+replayed.Unsettled, f.Depth(f.main), "those that are in both are told")
	assert.Positive(t, replayed.Unsettled)
	assert.LessOrEqual(t, replayed.Unsettled, 256)
}

// A writer that is no file keeps the beginning of a line. An import leaves it out, and says so.
func TestUndoIntoAWriterThatIsNoFile(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	const deadLetters = 100
	f.fill(deadLetters)
	disk, lines := onFullDisk(t, 20_001)
	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Purge, Undo: struct{ io.Writer }{disk}})
	require.ErrorIs(t, err, errFull)
	whole, torn := lines()
	assert.NotEmpty(t, torn)
	assert.Equal(t, whole, report.Done+report.Unsettled)
	_, err = disk.Seek(0, io.SeekStart)
	require.NoError(t, err)
	imported, err := f.queue.Import(t.Context(), disk, dlq.ImportOptions{})
	require.NoError(t, err)
	assert.True(t, imported.Truncated)
	assert.Equal(t, whole, imported.Done)
}

func TestMove(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	parked := f.main + "-parked"
	f.Declare(parked, amqp091.Table{amqp091.QueueTypeArg: "quorum"})
	strange := amqp091.Publishing{
		Body: []byte{0xff, 0}, Headers: amqp091.Table{"a": amqp091.Table{"b": []any{int8(1), nil}}, "": "empty",
			"CC": []any{}},
		ContentType: "x/y", ContentEncoding: "z", CorrelationId: "c", ReplyTo: "r", MessageId: "m", Type: "t",
		AppId: "app", Priority: 7, Timestamp: deadletter.Died,
	}
	want := deadletter.New(f.main, 0)
	f.Publish(f.queue.Name(), want, strange)

	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Move, To: parked})
	require.NoError(t, err)
	assert.Equal(t, 2, report.Done)
	got := f.drained(parked, 2)
	// priorities count from 4.0 on
	slices.SortFunc(got, func(a, b amqp091.Delivery) int { return strings.Compare(a.ContentType, b.ContentType) })
	assert.Equal(t, want.Headers, withoutCounters(got[0].Headers), "header by header")
	assert.Equal(t, want.Body, got[0].Body)
	assert.Equal(t, strange.Headers["a"], got[1].Headers["a"])
	assert.Equal(t, "empty", got[1].Headers[""])
	assert.Equal(t, strange.Body, got[1].Body)
	assert.Equal(t, []any{"x/y", "z", "c", "r", "m", "t", "app", uint8(7), deadletter.Died}, []any{
		got[1].ContentType, got[1].ContentEncoding, got[1].CorrelationId, got[1].ReplyTo, got[1].MessageId, got[1].Type,
		got[1].AppId, got[1].Priority, got[1].Timestamp.UTC(),
	})

	wrong := (*config.FieldError)(nil)
	_, err = f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Move})
	require.ErrorAs(t, err, &wrong)
	_, err = f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Move, To: f.queue.Name()})
	require.ErrorAs(t, err, &wrong)
}

func withoutCounters(headers amqp091.Table) amqp091.Table {
	delete(headers, header.DeliveryCount)
	delete(headers, header.AcquiredCount)

	return headers
}

func TestExportAndImportAreLossless(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(300)
	var first, second bytes.Buffer
	report, err := f.queue.Export(t.Context(), &first, dlq.ExportOptions{})
	require.NoError(t, err)
	assert.Equal(t, 300, report.Done)
	f.Has(f.queue.Name(), 300)
	_, err = f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Purge})
	require.NoError(t, err)

	var done int
	imported, err := f.queue.Import(t.Context(), bytes.NewReader(first.Bytes()), dlq.ImportOptions{
		Filter: dlq.Filter{Headers: map[string]string{"tenant": "1"}}, Imported: func(lines int) error {
			done = lines
			return nil
		},
	})
	require.NoError(t, err)
	assert.Equal(t, 100, imported.Done)
	assert.Equal(t, 300, done)
	_, err = f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Purge})
	require.NoError(t, err)

	_, err = f.queue.Import(t.Context(), bytes.NewReader(first.Bytes()), dlq.ImportOptions{})
	require.NoError(t, err)
	_, err = f.queue.Export(t.Context(), &second, dlq.ExportOptions{})
	require.NoError(t, err)
	assert.Equal(t, first.String(), second.String())

	limited := new(bytes.Buffer)
	report, err = f.queue.Export(t.Context(), limited, dlq.ExportOptions{Limit: 7})
	require.NoError(t, err)
	assert.Equal(t, 7, report.Done)
	assert.Equal(t, 7, strings.Count(limited.String(), "\n"))
}

func TestImportOfWhatIsWrong(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(10)
	var lines bytes.Buffer
	_, err := f.queue.Export(t.Context(), &lines, dlq.ExportOptions{})
	require.NoError(t, err)
	_, err = f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Purge})
	require.NoError(t, err)

	line := (*dlq.LineError)(nil)
	broken := strings.Replace(lines.String(), `"v":1`, `"v":2`, 5)
	broken = strings.Replace(broken, `"v":2`, `"v":1`, 4)
	report, err := f.queue.Import(t.Context(), strings.NewReader(broken), dlq.ImportOptions{})
	require.ErrorAs(t, err, &line)
	assert.Equal(t, 5, line.Line)
	assert.Equal(t, 4, report.Done)
	f.Has(f.queue.Name(), 4)

	// Whoever wrote it was killed.
	report, err = f.queue.Import(t.Context(), bytes.NewReader(lines.Bytes()[:lines.Len()-20]),
		dlq.ImportOptions{Skip: 4})
	require.NoError(t, err)
	assert.True(t, report.Truncated)
	assert.Equal(t, 5, report.Done)
	assert.Equal(t, deadletter.Bodies(9), rabbit.Bodies(f.drained(f.queue.Name(), 9)))

	missing := (*dlq.NoQueueError)(nil)
	_, err = f.queue.Import(t.Context(), bytes.NewReader(lines.Bytes()), dlq.ImportOptions{To: "nobody-" + f.main})
	require.ErrorAs(t, err, &missing)
}

func TestStatAndGet(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(90)
	f.Publish(f.queue.Name(), amqp091.Publishing{Body: []byte("by hand")})
	stat, err := f.queue.Stat(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	assert.Equal(t, []int{91, 91, 91}, []int{stat.Ready, stat.Seen, stat.Matched})
	assert.Equal(t, map[string]int{"exhausted": 90, "": 1}, stat.ByReason.ByName)
	assert.Equal(t, deadletter.Died, stat.Oldest)
	assert.Equal(t, 1, stat.Untimed)

	deadLetter, err := f.queue.Get(t.Context(), "uuid-42")
	require.NoError(t, err)
	assert.Equal(t, `{"n":42}`, string(deadLetter.Message.Body))
	missing := (*dlq.NotFoundError)(nil)
	_, err = f.queue.Get(t.Context(), "nobody")
	require.ErrorAs(t, err, &missing)
	assert.Equal(t, 91, missing.Seen)

	_, err = f.client.Queue("nobody-"+f.main).Stat(t.Context(), dlq.Filter{})
	none := (*dlq.NoQueueError)(nil)
	require.ErrorAs(t, err, &none)
}

// A quorum queue that is not declared as ours counts browses, and would drop messages.
func TestBrowsingForeignQueues(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		arguments amqp091.Table
		refused   int // after so many browses at the latest; 0: never
	}{
		"limit 20": {amqp091.Table{"x-delivery-limit": int64(20)}, 12},
		"limit 2":  {amqp091.Table{"x-delivery-limit": int64(2)}, 1},
		"other arguments": {amqp091.Table{"x-delivery-limit": int64(20), "x-max-length": int64(1000),
			"x-queue-leader-locator": "client-local", "x-dead-letter-exchange": "amq.fanout",
			"x-dead-letter-routing-key": "5"}, 12},
		"ours, and length": {amqp091.Table{"x-delivery-limit": int64(1 << 31), "x-max-length": int64(1000)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.arguments[amqp091.QueueTypeArg] = "quorum"
			f := onBroker(t, test.arguments)
			f.fill(20)
			refused := 0
			for browse := 1; browse <= 40 && refused == 0; browse++ {
				if _, err := f.queue.Stat(t.Context(), dlq.Filter{}); err != nil {
					unsafe := (*dlq.UnsafeError)(nil)
					require.ErrorAs(t, err, &unsafe)
					assert.Equal(t, !f.countsNoBrowses(), strings.Contains(unsafe.Found, "each browse counts"),
						unsafe.Found)
					refused = browse
				}
				f.Has(f.queue.Name(), 20)
			}
			if test.refused == 0 {
				assert.Zero(t, refused)
			} else if refused > 0 { // from 4.3 on, browses do not count
				assert.LessOrEqual(t, refused, test.refused)
			}
			for range 5 {
				_, _ = f.queue.Stat(t.Context(), dlq.Filter{})
			}
			assert.ElementsMatch(t, deadletter.Bodies(20), rabbit.Bodies(f.drained(f.queue.Name(), 20)),
				"nothing is lost")
		})
	}
}

// What stays behind one that goes, and before the next one, must not go with them: acknowledgements
// are for many at a time.
func TestTakingTheFirstOfMany(t *testing.T) {
	t.Parallel()
	const n = 400
	for name, goes := range map[string]func(int) bool{
		"the first and the last of the first block": func(i int) bool { return i == 0 || i == 31 },
		"each tenth":           func(i int) bool { return i%10 == 0 },
		"all but each tenth":   func(i int) bool { return i%10 != 9 },
		"the first five of 50": func(i int) bool { return i%50 < 5 },
		"the last half":        func(i int) bool { return i >= n/2 },
		"the first half":       func(i int) bool { return i < n/2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := onBroker(t, nil)
			f.fill(n)
			var filter dlq.Filter
			var gone, stay []string
			for i, body := range deadletter.Bodies(n) {
				if goes(i) {
					filter.UUIDs, gone = append(filter.UUIDs, "uuid-"+strconv.Itoa(i)), append(gone, body)
				} else {
					stay = append(stay, body)
				}
			}
			report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Filter: filter})
			require.NoError(t, err)
			assert.Equal(t, len(gone), report.Done)
			f.Has(f.queue.Name(), len(stay))
			f.Has(f.main, len(gone))
			assert.Equal(t, stay, rabbit.Bodies(f.drained(f.queue.Name(), len(stay))))
			assert.Equal(t, gone, rabbit.Bodies(f.drained(f.main, len(gone))))
		})
	}
}
