package dlq_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// springMessage is as Spring AMQP publishes a message that had waited for a retry before: with the
// x-death of that.
func springMessage(queue string, at time.Time) amqp091.Publishing {
	death := func(queue, reason string) amqp091.Table {
		return amqp091.Table{"queue": queue, "reason": reason, "count": int64(2), "time": at, "exchange": "shop",
			"routing-keys": []any{"order.created"}}
	}

	return amqp091.Publishing{Headers: amqp091.Table{
		"x-exception-message": "no stock: item 17",
		"x-exception-stacktrace": "org.springframework.amqp.rabbit.support.ListenerExecutionFailedException: " +
			"Listener threw exception\n\tat a.B.c(B.java:1)\n" +
			"Caused by: java.lang.IllegalStateException: no stock: item 17\n\tat a.B.d(B.java:2)\n",
		"x-original-exchange": "", "x-original-routingKey": queue,
		"x-death": []any{death(queue+".wait", "expired"), death(queue, "rejected")},
	}, Body: []byte("spring")}
}

// untimedSpringMessage is that of a message that has failed at once.
func untimedSpringMessage(queue string) amqp091.Publishing {
	return amqp091.Publishing{Headers: amqp091.Table{"x-exception-message": "no stock: item 18",
		"x-original-exchange": "shop", "x-original-routingKey": "order.created"}, Body: []byte("untimed " + queue)}
}

func massTransitMessage(queue string, at time.Time) amqp091.Publishing {
	return amqp091.Publishing{Headers: amqp091.Table{
		"MT-Reason": "fault", "MT-Host-MachineName": "shop-1", "MT-Fault-ExceptionType": "Shop.StockException",
		"MT-Fault-Message": "No stock of 17", "MT-Fault-Timestamp": at.Format("2006-01-02T15:04:05.0000000Z"),
		"MT-Fault-InputAddress": "rabbitmq://broker/shop/" + queue, "MT-Fault-ConsumerType": "Shop.BillConsumer",
		"MT-Fault-MessageType": "Shop.Order", "MT-Fault-RetryCount": int32(3),
	}, ContentType: "application/vnd.masstransit+json", MessageId: "mt", Body: []byte("mt")}
}

func nServiceBusMessage(queue string, at time.Time) amqp091.Publishing {
	return amqp091.Publishing{Headers: amqp091.Table{
		"NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
		"NServiceBus.ExceptionInfo.Message":       []byte("Timed out"), // bytes, as some gateways write them
		"NServiceBus.TimeOfFailure": strings.Replace(at.Format("2006-01-02 15:04:05.000000 Z"), ".", ":",
			1),
		"NServiceBus.FailedQ": queue, "NServiceBus.ProcessingEndpoint": "Billing",
		"NServiceBus.EnclosedMessageTypes": "Shop.Bill, Shop, Version=1.0.0.0", "NServiceBus.CorrelationId": "c",
	}, MessageId: "nsb " + queue, Body: []byte("nsb " + queue)}
}

// Dead letters of other systems, and of the broker alone, are read, counted, filtered and replayed.
func TestForeignDeadLetters(t *testing.T) {
	t.Parallel()
	f := connected(t, brokertest.URI(t))
	f.declared(amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f.queue.Name()}, nil)
	at := time.Now().UTC().Add(-time.Hour).Truncate(time.Microsecond)
	another := massTransitMessage(f.main, at.Add(time.Minute))
	another.MessageId, another.Headers["MT-Fault-Message"] = "mt 2", "No stock of 18"
	f.Publish(f.queue.Name(), springMessage(f.main, at.Truncate(time.Second)), untimedSpringMessage(f.main),
		massTransitMessage(f.main, at), another, nServiceBusMessage(f.main, at), nServiceBusMessage("bills", at))
	f.Publish(f.main, rabbit.Message("rejected", "rejected"))
	rejected, ok, err := f.Channel().Get(f.main, false)
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, rejected.Reject(false))
	f.Has(f.queue.Name(), 7)

	stat, err := f.queue.Stat(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"rejected": 7}, stat.ByReason.ByName)
	assert.Equal(t, map[string]int{"": 2, "java.lang.IllegalStateException": 1, "Shop.StockException": 2,
		"System.TimeoutException": 2}, stat.ByErrorType.ByName)
	assert.Equal(t, map[string]int{"": 3, "Shop.BillConsumer": 2, "Billing": 2}, stat.ByHandler.ByName)
	assert.Equal(t, map[string]int{"": 3, "Shop.Order": 2, "Shop.Bill": 2}, stat.ByTopic.ByName)
	assert.Len(t, stat.ByFingerprint.ByName, 5, "both of MassTransit, and both of NServiceBus, have one cause each")
	assert.Equal(t, 1, stat.Untimed)
	assert.Zero(t, stat.UntimedLeftOut, "no filter leaves anything out")

	var letters []dlq.DeadLetter
	for l, err := range f.queue.Browse(t.Context(), dlq.Filter{}) {
		require.NoError(t, err)
		letters = append(letters, l)
	}
	require.Len(t, letters, 7)
	assert.WithinDuration(t, time.Now(), letters[6].LastFailure, time.Minute)
	assert.Equal(t, f.main, letters[6].RoutingKey)
	for i, want := range []retry.DeadLetter{
		{Error: "no stock: item 17", ErrorType: "java.lang.IllegalStateException", Exchange: "shop",
			RoutingKey: "order.created", LastFailure: at.Truncate(time.Second)},
		{Error: "no stock: item 18", Exchange: "shop", RoutingKey: "order.created"},
		{Error: "No stock of 17", ErrorType: "Shop.StockException", Topic: "Shop.Order", Handler: "Shop.BillConsumer",
			Host: "shop-1", Calls: 4, LastFailure: at},
		{Error: "No stock of 18", ErrorType: "Shop.StockException", Topic: "Shop.Order", Handler: "Shop.BillConsumer",
			Host: "shop-1", Calls: 4, LastFailure: at.Add(time.Minute)},
		{Error: "Timed out", ErrorType: "System.TimeoutException", Topic: "Shop.Bill", Handler: "Billing",
			LastFailure: at},
		{Error: "Timed out", ErrorType: "System.TimeoutException", Topic: "Shop.Bill", Handler: "Billing",
			LastFailure: at,
			Queue:       "bills"},
	} {
		want.Reason = retry.ReasonRejected
		if want.Queue == "" {
			want.Queue = f.main
		}
		assert.Equal(t, want, letters[i].DeadLetter, i)
	}

	for name, test := range map[string]struct {
		filter         dlq.Filter
		wanted, untold int
	}{
		"error":                          {dlq.Filter{ErrorContains: "no stock"}, 2, 0},
		"error type":                     {dlq.Filter{ErrorTypes: []string{"System.TimeoutException"}}, 2, 0},
		"reason":                         {dlq.Filter{Reasons: []retry.Reason{retry.ReasonRejected}}, 7, 0},
		"handler":                        {dlq.Filter{Handlers: []string{"Billing"}}, 2, 0},
		"topic":                          {dlq.Filter{Topics: []string{"Shop.Order"}}, 2, 0},
		"older":                          {dlq.Filter{OlderThan: 30 * time.Minute}, 5, 1},
		"newer":                          {dlq.Filter{NewerThan: 30 * time.Minute}, 1, 1},
		"newer, with an error of Spring": {dlq.Filter{NewerThan: 30 * time.Minute, ErrorContains: "no stock"}, 0, 1},
		"newer, of MassTransit": {dlq.Filter{NewerThan: 30 * time.Minute, Topics: []string{"Shop.Order"}}, 0,
			0},
		"fingerprint": {dlq.Filter{Fingerprints: []string{letters[2].Fingerprint().ID}}, 2, 0},
	} {
		stat, err := f.queue.Stat(t.Context(), test.filter)
		require.NoError(t, err, name)
		assert.Equal(t, test.wanted, stat.Matched, name)
		assert.Equal(t, test.untold, stat.UntimedLeftOut, name)
	}

	report, err := f.queue.Run(t.Context(), dlq.Plan{Kind: dlq.Replay})
	require.NoError(t, err)
	assert.Equal(t, 6, report.Done)
	assert.Equal(t, []dlq.Left{{Why: dlq.LeftForeign, Messages: 1}}, report.Left,
		"NServiceBus says that bills failed it")
	replayed := f.drained(f.main, 6)
	assert.Equal(t, "No stock of 17", replayed[2].Headers["MT-Fault-Message"], "its own headers stay")
	assert.Equal(t, int32(3), replayed[2].Headers["MT-Fault-RetryCount"])
}

// Headers of another system never say where a replay goes: they only hold back what another queue
// has failed.
func TestForeignReplaysOfASharedErrorQueue(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	errors := f.client.DeadLetterQueue(f.queue.Name(), "")
	f.Publish(errors.Name(), nServiceBusMessage("bills", time.Now()), nServiceBusMessage(f.main, time.Now()))
	report, err := errors.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, To: f.main})
	require.NoError(t, err)
	assert.Equal(t, 1, report.Done)
	assert.Equal(t, []dlq.Left{{Why: dlq.LeftForeign, Messages: 1}}, report.Left)
	assert.Equal(t, "nsb "+f.main, string(f.drained(f.main, 1)[0].Body))

	report, err = errors.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, To: f.main, Foreign: true})
	require.NoError(t, err)
	assert.Equal(t, 1, report.Done)
}

// Whatever filters by time says how many messages it cannot judge.
func TestUntimedLeftOut(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	f.Publish(f.queue.Name(), untimedSpringMessage("a"), untimedSpringMessage("b"), deadletter.New(f.main, 1))
	old, moved := dlq.Filter{OlderThan: time.Hour}, f.main+".moved"
	f.Declare(moved, classic())

	var lines strings.Builder
	report, err := f.queue.Export(t.Context(), &lines, dlq.ExportOptions{Filter: old})
	require.NoError(t, err)
	assert.Equal(t, [2]int{1, 2}, [2]int{report.Matched, report.UntimedLeftOut}, "an export")
	lines.Reset()
	_, err = f.queue.Export(t.Context(), &lines, dlq.ExportOptions{})
	require.NoError(t, err)
	for _, missing := range []bool{false, true} {
		report, err = f.queue.Import(t.Context(), strings.NewReader(lines.String()), dlq.ImportOptions{Filter: old,
			To:     moved,
			DryRun: true, OnlyMissing: missing})
		require.NoError(t, err)
		assert.Equal(t, 2, report.UntimedLeftOut, "an import")
	}

	plan := dlq.Plan{Kind: dlq.Move, To: moved, Filter: old}
	counted, err := f.queue.Plan(t.Context(), plan)
	require.NoError(t, err)
	assert.Equal(t, [2]int{1, 2}, [2]int{counted.Counted.Matched, counted.Counted.UntimedLeftOut}, "a dry run")
	report, err = f.queue.Run(t.Context(), counted)
	require.NoError(t, err)
	assert.Equal(t, [2]int{1, 2}, [2]int{report.Done, report.UntimedLeftOut}, "a run that was counted")
	report, err = f.queue.Run(t.Context(), plan)
	require.NoError(t, err)
	assert.Equal(t, [2]int{0, 2}, [2]int{report.Done, report.UntimedLeftOut}, "a run")
}
