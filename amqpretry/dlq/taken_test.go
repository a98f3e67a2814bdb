package dlq_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// The undo file of a replay or a move is none of what has become of the messages since: whoever
// imports it is asked, once for each run.
func TestImportOfWhatWasSentOn(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(9)
	other := f.main + ".other"
	f.Declare(other, nil)
	began := time.Now().Truncate(time.Second)
	var undo bytes.Buffer
	var runs []string
	for range 2 {
		report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, Limit: 2, Undo: &undo})
		require.NoError(t, err)
		runs = append(runs, report.Run)
	}
	_, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Move, To: other, Limit: 2, Undo: &undo})
	require.NoError(t, err)
	_, err = f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Purge, Limit: 2, Undo: &undo})
	require.NoError(t, err)
	var export bytes.Buffer
	_, err = f.queue.Export(t.Context(), &export, dlq.ExportOptions{})
	require.NoError(t, err)
	assert.NotContains(t, export.String(), `"taken"`)
	undo.Write(export.Bytes())

	var asked []dlq.Taken
	ask := func(taken dlq.Taken) error {
		assert.WithinRange(t, taken.At, began, time.Now())
		taken.At = time.Time{}
		asked = append(asked, taken)
		return nil
	}
	report, err := f.queue.Import(t.Context(), bytes.NewReader(undo.Bytes()), dlq.ImportOptions{Taken: ask})
	require.NoError(t, err)
	assert.Equal(t, 9, report.Done)
	assert.Equal(t, []dlq.Taken{{By: "replay", To: f.main, Run: runs[0]}, {By: "replay", To: f.main, Run: runs[1]},
		{By: "move", To: other}}, asked)

	no := errors.New("no")
	report, err = f.queue.Import(t.Context(), bytes.NewReader(undo.Bytes()),
		dlq.ImportOptions{Taken: func(taken dlq.Taken) error {
			if taken.By == "move" {
				return no
			}
			return nil
		}})
	require.ErrorIs(t, err, no)
	assert.Equal(t, 4, report.Done, "what was before is imported")

	// The queue of the lines is another one than that of the import.
	into, elsewhere := f.client.DeadLetterQueue(other, f.main), []string(nil)
	from := func(queue string) error {
		elsewhere = append(elsewhere, queue)
		return no
	}
	report, err = into.Import(t.Context(), bytes.NewReader(undo.Bytes()), dlq.ImportOptions{Elsewhere: from})
	require.ErrorIs(t, err, no)
	assert.Zero(t, report.Done)
	assert.Equal(t, []string{f.queue.Name()}, elsewhere)
	_, err = f.queue.Import(t.Context(), bytes.NewReader(undo.Bytes()), dlq.ImportOptions{To: other, Elsewhere: from})
	require.NoError(t, err, "the target is what the caller wants")

	_, err = f.queue.Import(t.Context(),
		bytes.NewReader(bytes.Replace(undo.Bytes(), []byte(`"by":"replay"`), []byte(`"by":7`), 1)), dlq.ImportOptions{})
	require.ErrorContains(t, err, "line 1: .taken.by")
}
