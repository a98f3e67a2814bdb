package dlq_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// full is a queue that takes so many messages and refuses the others.
func (f *fixture) full(n int) string {
	f.t.Helper()
	name := f.main + ".full"
	f.Declare(name, amqp091.Table{"x-queue-type": "classic", "x-max-length": int64(n), "x-overflow": "reject-publish"})

	return name
}

// watched is a client that says what it waits for.
func (f *fixture) watched() (*dlq.Queue, chan error) {
	f.t.Helper()
	told := make(chan error, 10)
	client, err := dlq.Open(f.t.Context(), dlq.Config{URI: f.URI, NoDeliveryLimitPolicy: true,
		OnBlocked: func(why error) { told <- why }})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = client.Close() })

	return client.Queue(f.main), told
}

func (f *fixture) isTold(told chan error) error {
	f.t.Helper()
	return await.Value(f.t, told, "it tells what it waits for")
}

// Who waits for a full target is told so, and when it is interrupted nothing is said to be where it
// is not.
func TestMoveToAQueueThatIsFull(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(100)
	target := f.full(30)
	queue, told := f.watched()
	interrupted := func() (dlq.Report, time.Duration) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var report dlq.Report
		ended := make(chan error, 1)
		go func() {
			var err error
			report, err = queue.Run(ctx, dlq.Plan{Kind: dlq.Move, To: target})
			ended <- err
		}()
		require.ErrorContains(t, f.isTold(told), target)
		began := time.Now()
		cancel()
		require.ErrorIs(t, await.Value(t, ended, "the move ends"), context.Canceled)

		return report, time.Since(began)
	}
	report, took := interrupted()
	assert.Equal(t, 30, report.Done)
	assert.Zero(t, report.Unsettled)
	assert.Positive(t, report.Refused)
	f.Has(target, 30)
	f.Has(f.queue.Name(), 70)
	// Whoever waits for confirms after all takes 10 s each time, and a busy machine takes long only
	// now and then.
	for range 3 {
		if took >= 5*time.Second {
			_, took = interrupted()
		}
	}
	assert.Less(t, took, 5*time.Second)
}

// When there is room again, it goes on, and says so.
func TestMoveGoesOnWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(50)
	target := f.full(30)
	queue, told := f.watched()
	ended := make(chan error, 1)
	go func() {
		report, err := queue.Run(t.Context(), dlq.Plan{Kind: dlq.Move, To: target})
		assert.Equal(t, 50, report.Done)
		assert.Zero(t, report.Unsettled+report.Refused)
		ended <- err
	}()
	require.ErrorContains(t, f.isTold(told), target)
	f.Do(func(channel *amqp091.Channel) error {
		_, err := channel.QueuePurge(target, false)
		return err
	})
	require.NoError(t, f.isTold(told))
	require.NoError(t, <-ended)
	f.Has(target, 20)
	f.Has(f.queue.Name(), 0)
}

// Neither the report, nor the progress, nor how far an import is said to be counts what was
// refused.
func TestImportIntoAQueueThatIsFull(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.fill(600)
	var file bytes.Buffer
	_, err := f.queue.Export(t.Context(), &file, dlq.ExportOptions{})
	require.NoError(t, err)
	target := f.full(300)

	queue, told := f.watched()
	var progress dlq.Progress
	lines := 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var report dlq.Report
	ended := make(chan error, 1)
	go func() {
		var err error
		report, err = queue.Import(ctx, &file, dlq.ImportOptions{
			To: target, Progress: func(p dlq.Progress) {
				progress = p
			}, Imported: func(n int) error { lines = n; return nil },
		})
		ended <- err
	}()
	require.ErrorContains(t, f.isTold(told), target)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	f.Has(target, 300)
	assert.Equal(t, 300, report.Done)
	assert.Equal(t, 300, progress.Done)
	assert.Equal(t, 300, lines)
}
