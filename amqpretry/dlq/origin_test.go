package dlq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
)

// shared is a fixture whose dead-letter queue takes the messages of several queues, which it names
// after itself.
type shared struct {
	*fixture
	errors *dlq.Queue
}

func onSharedQueue(t *testing.T, queues ...string) *shared {
	t.Helper()
	f := onBroker(t, nil)
	for _, name := range queues {
		f.Declare(f.name(name), classic())
	}

	return &shared{f, f.client.DeadLetterQueue(f.queue.Name(), f.queue.Name())}
}

func (f *fixture) name(queue string) string { return f.main + "." + queue }

func (f *shared) origins(r dlq.Report) string {
	var all []string
	for _, o := range r.Origins {
		text := fmt.Sprintf("%s %d", strings.TrimPrefix(o.Queue, f.main+"."), o.Messages)
		all = append(all, strings.TrimSpace(text+" "+o.Problem))
	}

	return strings.Join(all, ", ")
}

// A message of each library goes to the queue that its headers name, and the others stay.
func TestReplayToOrigins(t *testing.T) {
	t.Parallel()
	at := time.Now().UTC().Add(-time.Hour).Truncate(time.Second)
	f := onSharedQueue(t, "spring", "mt", "nsb", "died", "expired", "not-chosen")
	f.Publish(f.queue.Name(), springMessage(f.name("spring"), at), massTransitMessage(f.name("mt"), at),
		nServiceBusMessage(f.name("nsb"), at), nServiceBusMessage(f.name("nsb"), at),
		nServiceBusMessage(f.name("gone"), at),
		deadletter.New(f.main, 1), deadletter.New(f.main, 2), untimedSpringMessage(f.main),
		amqp091.Publishing{Headers: amqp091.Table{"x-exception-message": "no stock", "x-original-exchange": "",
			"x-original-routingKey": f.name("spring")}, Body: []byte("default exchange")},
		nServiceBusMessage(f.queue.Name(), at), nServiceBusMessage(f.main+".retry.30s", at),
		nServiceBusMessage("other.landing", at), nServiceBusMessage("amq.gen-x", at),
		amqp091.Publishing{Headers: amqp091.Table{"x-death": []any{amqp091.Table{"queue": f.name("died"),
			"reason": "rejected", "count": int64(1), "time": at, "exchange": "", "routing-keys": []any{"x"}}}}},
		amqp091.Publishing{Headers: amqp091.Table{"x-first-death-queue": f.name("expired"),
			"x-first-death-reason": "expired", "x-first-death-exchange": ""}},
		nServiceBusMessage(f.name("not-chosen"), at))
	const all = 16
	f.Has(f.queue.Name(), all)

	plan, err := f.errors.Plan(t.Context(), dlq.Plan{Kind: dlq.Replay, ToOrigin: true})
	require.NoError(t, err)
	r := *plan.Counted
	assert.Equal(t, 10, r.Can())
	found := f.origins(r)
	for _, want := range []string{"spring 2", "mt 1", "nsb 2", "died 1", "expired 1", "not-chosen 1", f.main + " 2",
		"gone 0 does not exist", f.queue.Name() + " 0 is the dead-letter queue itself",
		"retry.30s 0 is a retry queue or a landing queue", "other.landing 0 is a retry queue or a landing queue",
		"amq.gen-x 0 has a name of the broker's own"} {
		assert.Contains(t, ", "+found+",", ", "+strings.TrimPrefix(want, f.main+".")+",")
	}
	assert.Equal(t, []dlq.Left{{Why: dlq.LeftNoTarget, Messages: 5}, {Why: dlq.LeftNoOrigin, Messages: 1}}, r.Left)
	assert.Contains(t, strings.Join(r.Warnings, "\n"), f.name("mt")+" has no consumer")

	_, err = f.errors.Run(t.Context(), plan)
	var field *config.FieldError
	require.ErrorAs(t, err, &field, "headers alone choose no target")
	assert.Equal(t, "Plan.Origins", field.Path)
	f.Has(f.queue.Name(), all)

	undo := &bytes.Buffer{}
	plan.Undo = undo
	for _, queue := range []string{"spring", "mt", "nsb", "died", "expired", "gone"} {
		plan.Origins = append(plan.Origins, f.name(queue))
	}
	plan.Origins = append(plan.Origins, f.main)
	r, err = f.errors.Run(t.Context(), plan)
	require.NoError(t, err)
	assert.Equal(t, 9, r.Done)
	assert.Zero(t, r.Dropped)
	for queue, n := range map[string]int{"spring": 2, "mt": 1, "nsb": 2, "died": 1, "expired": 1, "not-chosen": 0} {
		f.Has(f.name(queue), n)
	}
	f.Has(f.main, 2)
	f.Has(f.queue.Name(), all-9)
	d := f.drained(f.name("nsb"), 2)[0]
	assert.Equal(t, f.name("nsb"), d.Headers[header.Queue])
	assert.Equal(t, r.Run, d.Headers[header.Replay])
	assert.Contains(t, undo.String(), `"by":"replay","to":"`+f.name("nsb")+`"`)
	assert.Contains(t, undo.String(), `"by":"replay","to":"`+f.main+`"`)
}

// One rate and one limit are for all origins together.
func TestReplayToOriginsIsLimited(t *testing.T) {
	t.Parallel()
	f := onSharedQueue(t, "a", "b")
	f.fillWith(40, func(i int) amqp091.Publishing {
		return deadletter.New(f.name(string(rune('a'+i%2))), i)
	})
	began := time.Now()
	r, err := f.errors.Run(t.Context(), dlq.Plan{Kind: dlq.Replay, ToOrigin: true, Limit: 20, Rate: 50,
		Origins: []string{f.name("a"), f.name("b")}})
	require.NoError(t, err)
	assert.Equal(t, 20, r.Done)
	assert.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
	assert.Equal(t, "a 10, b 10", f.origins(r))
	f.Has(f.name("a"), 10)
	f.Has(f.name("b"), 10)
}

// An origin that is deleted during the run ends it. What was not sent is in the dead-letter queue,
// and the next run leaves it there.
func TestReplayToOriginsOfWhichOneIsDeleted(t *testing.T) {
	t.Parallel()
	f := onSharedQueue(t, "a", "b")
	f.fillWith(40, func(i int) amqp091.Publishing {
		return deadletter.New(f.name(string(rune('a'+i%2))), i)
	})
	plan := dlq.Plan{Kind: dlq.Replay, ToOrigin: true, Rate: 100, Origins: []string{f.name("a"), f.name("b")}}
	first := plan
	remove := sync.OnceFunc(func() {
		f.Do(func(c *amqp091.Channel) error {
			_, err := c.QueueDelete(f.name("b"), false, false, false)
			return err
		})
	})
	first.Progress = func(p dlq.Progress) {
		if p.Done >= 10 { // several may be done at once
			remove()
		}
	}
	r, err := f.errors.Run(t.Context(), first)
	var missing *dlq.NoQueueError
	require.ErrorAs(t, err, &missing)
	assert.Equal(t, f.name("b"), missing.Queue)
	assert.GreaterOrEqual(t, r.Done, 10)
	require.NotEqual(t, 40, r.Done)

	sent := f.Depth(f.name("a"))
	again, err := f.errors.Run(t.Context(), plan)
	require.NoError(t, err)
	f.Has(f.name("a"), sent+again.Done)
	assert.GreaterOrEqual(t, sent+again.Done, 20, "none of the others is lost")
	assert.Equal(t, []dlq.Left{{Why: dlq.LeftNoTarget, Messages: again.Matched - again.Done}}, again.Left)
	assert.Contains(t, f.origins(again), "b 0 does not exist")
}

// An origin that would drop messages refuses the run before anything is sent; one that rejects them
// ends it.
func TestReplayToOriginsOfWhichOneIsFull(t *testing.T) {
	t.Parallel()
	for _, overflow := range []string{"drop-head", "reject-publish"} {
		t.Run(overflow, func(t *testing.T) {
			t.Parallel()
			f := onSharedQueue(t, "a")
			f.Declare(f.name("b"), amqp091.Table{amqp091.QueueMaxLenArg: int64(3), amqp091.QueueOverflowArg: overflow})
			f.fillWith(20, func(i int) amqp091.Publishing {
				return deadletter.New(f.name(string(rune('a'+i%2))), i)
			})
			origins := []string{f.name("a"), f.name("b")}
			plan, err := f.errors.Plan(t.Context(), dlq.Plan{Kind: dlq.Replay, ToOrigin: true})
			require.NoError(t, err)
			assert.Equal(t, 7, plan.Counted.WouldDrop)
			plan.Origins = origins
			if overflow == "drop-head" {
				for _, p := range []dlq.Plan{plan, {Kind: dlq.Replay, ToOrigin: true, Origins: origins}} {
					_, err = f.errors.Run(t.Context(), p)
					var drop *dlq.DropError
					require.ErrorAs(t, err, &drop)
					assert.Equal(t, f.name("b"), drop.Target.Queue)
				}
				require.ErrorAs(t, plan.Check(), new(*dlq.DropError))
				f.Has(f.queue.Name(), 20)
				return
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, errors.New("enough"))
			defer cancel()
			r, err := f.errors.Run(ctx, plan)
			require.Error(t, err)
			f.Has(f.name("b"), 3)
			left := f.Depth(f.queue.Name())
			assert.GreaterOrEqual(t, f.Depth(f.name("a"))+3+left, 20, "nothing is lost")
			assert.LessOrEqual(t, 20-left, r.Done+r.Unsettled)
		})
	}
}

func TestPlansToOriginsThatCannotBe(t *testing.T) {
	for name, p := range map[string]dlq.Plan{
		"a move":         {Kind: dlq.Move, To: "x", ToOrigin: true},
		"another target": {Kind: dlq.Replay, To: "x", ToOrigin: true},
		"a canary":       {Kind: dlq.Replay, ToOrigin: true, Canary: dlq.Canary{Messages: 1}},
		"without it":     {Kind: dlq.Replay, Origins: []string{"a"}},
	} {
		assert.ErrorContains(t, p.Validate(), "Origin", name)
	}
}

// Whoever can publish can make up origins: only so many are asked for, and what is chosen is among
// them.
func TestReplayToOriginsThatAreMadeUp(t *testing.T) {
	t.Parallel()
	f := onSharedQueue(t, "a")
	f.fillWith(301, func(i int) amqp091.Publishing {
		if i == 300 {
			return deadletter.New(f.name("a"), i)
		}
		return deadletter.New(fmt.Sprintf("made-up-%d", i), i)
	})
	plan, err := f.errors.Plan(t.Context(), dlq.Plan{Kind: dlq.Replay, ToOrigin: true})
	require.NoError(t, err)
	assert.Len(t, plan.Counted.Origins, 100)
	assert.Equal(t, []dlq.Left{{Why: dlq.LeftUnasked, Messages: 201}, {Why: dlq.LeftNoTarget, Messages: 100}},
		plan.Counted.Left)
	plan, err = f.errors.Plan(t.Context(), dlq.Plan{Kind: dlq.Replay, ToOrigin: true, Origins: []string{f.name("a")}})
	require.NoError(t, err)
	r, err := f.errors.Run(t.Context(), plan)
	require.NoError(t, err)
	assert.Equal(t, 1, r.Done)
	f.Has(f.name("a"), 1)
}
