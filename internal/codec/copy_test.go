package codec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/fakebroker"
	"github.com/amqpretry/watermill-retry/internal/testkit/hostile"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

const unlimited = 0

// fullState is a state of which everything is at its bound.
func fullState() wire.State {
	long, now := strings.Repeat("x", 10_000), time.Now()
	s := wire.State{
		Count: 2, Delay: "30s", Attempts: 2, Replays: 1, Queue: strings.Repeat("q", 255), Topic: long, Handler: long,
		Host: long,
		UUID: long, Replay: long, Edits: long, FirstFailure: now, LastFailure: now, Deadline: now, Since: now,
		NotBefore: now, Error: long, ErrorType: long, Subscriber: long,
		Unknown: map[string]string{header.Prefix + "future": long[:wire.MaxUnknownBytes-30]},
	}
	for n := range 10 {
		s.History = wire.Append(s.History, retry.FailedCall{Number: n, At: now, Error: long, Type: long})
	}

	return s
}

// copyOf is the copy of a delivery without a limit.
func copyOf(d *amqp091.Delivery, s wire.State) amqp091.Publishing {
	p, _ := CopyOf(&CopyRequest{Delivery: d, State: s}, unlimited)
	return p
}

// ours sums up the headers of a publishing that are ours, Watermill's poison keys among them.
func ours(p amqp091.Publishing) (size int) {
	for key, value := range p.Headers {
		if header.IsOwn(key) || header.IsPoison(key) {
			size += headerSize(key, value)
		}
	}

	return size
}

func TestCopyIsTheMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := hostile.AnyDelivery(8).Draw(t, "delivery")
		before := fmt.Sprintf("%#v", d) // as text, because NaN is not equal to itself
		replay := rapid.Bool().Draw(t, "replay")

		p, state := CopyOf(&CopyRequest{Delivery: &d, State: wire.State{Count: 1, Delay: "30s", Attempts: 1,
			Queue: "q"}, Replay: replay}, unlimited)

		require.Equal(t, before, fmt.Sprintf("%#v", d), "the delivery stays as it is: it may be copied again")
		require.Equal(t, 1, state.Count)

		id := p.Headers[header.ID]
		require.NotEmpty(t, id)
		want := amqp091.Table{
			"amqpretry-v": "1", "amqpretry-id": id, "amqpretry-count": "1", "amqpretry-delay": "30s",
			"amqpretry-attempts": "1",
			"amqpretry-queue":    "q", "amqpretry-exchange": d.Exchange, "amqpretry-routing-key": d.RoutingKey,
		}
		if d.Expiration != "" {
			want["amqpretry-expiration"] = d.Expiration
		}
		if d.UserId != "" {
			want["amqpretry-user-id"] = d.UserId
		}
		if cc := encodeCC(d.Headers); cc != "" {
			want["amqpretry-cc"] = wire.Text(cc, 1<<10)
		}
		for key, value := range d.Headers {
			if !header.IsOwn(key) && !header.IsBroker(key) && (!replay || !header.IsPoison(key)) {
				want[key] = value
			}
		}
		require.Equal(t, fmt.Sprintf("%#v", want), fmt.Sprintf("%#v", p.Headers))

		p.Headers = nil
		require.Equal(t, amqp091.Publishing{
			ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
			Priority:      d.Priority,
			CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId, Timestamp: d.Timestamp,
			Type:  d.Type,
			AppId: d.AppId, Body: d.Body,
		}, p, "expiration and user id are not republished")
	})
}

// An application may have used Watermill's poison queue itself; on a replay the keys are those of
// the earlier death.
func TestCopyOfAReplayLosesThePoisonKeys(t *testing.T) {
	d := &amqp091.Delivery{Headers: amqp091.Table{"reason_poisoned": "r", "topic_poisoned": "t", "a": "b"}}

	for _, replay := range []bool{false, true} {
		p, _ := CopyOf(&CopyRequest{Delivery: d, State: wire.State{Count: 1, Delay: "1s"}, Replay: replay}, unlimited)
		assert.Equal(t, !replay, p.Headers["reason_poisoned"] == "r")
		assert.Equal(t, !replay, p.Headers["topic_poisoned"] == "t")
		assert.Equal(t, "b", p.Headers["a"])
	}
}

func TestEachCopyHasAnIDOfItsOwn(t *testing.T) {
	d := &amqp091.Delivery{}
	first, second := copyOf(d, wire.State{}), copyOf(d, wire.State{})
	assert.NotEqual(t, first.Headers[header.ID], second.Headers[header.ID])
}

func TestCopyKeepsTheFirstArrival(t *testing.T) {
	first := &amqp091.Delivery{
		Exchange: "events", RoutingKey: "orders.eu", Expiration: "60000", UserId: "guest",
		Headers: amqp091.Table{"CC": []any{"a", "b"}, "BCC": []any{"c"}},
	}
	_, state := CopyOf(&CopyRequest{Delivery: first, State: wire.State{Queue: "q"}}, unlimited)
	want := wire.NewArrival("events", "orders.eu", "60000", "guest", `["a","b"]`)
	assert.Equal(t, want, state.Arrival)

	_, state = CopyOf(&CopyRequest{Delivery: &amqp091.Delivery{RoutingKey: "q"}, State: state}, unlimited)
	assert.Equal(t, want, state.Arrival, "how it came back is not how it arrived")
}

func TestCopyNeverExceedsTheFrame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := hostile.AnyDelivery(6).Draw(t, "delivery")
		for i := range rapid.IntRange(0, 12).Draw(t, "large headers") {
			d.Headers[fmt.Sprintf("large-%d", i)] = strings.Repeat("x", rapid.IntRange(0, 4000).Draw(t, "size"))
		}
		limit := rapid.SampledFrom([]int{8 << 10, 9 << 10, 16 << 10, 32 << 10, 128 << 10, unlimited}).Draw(t, "limit")

		full := fullState()
		p, state := CopyOf(&CopyRequest{Delivery: &d, State: full}, limit)

		require.LessOrEqual(t, ours(p), wire.MaxOwnBytes)
		if limit != unlimited {
			require.LessOrEqual(t, len(fakebroker.HeaderFrame(p)), limit)
		}

		for key, value := range map[string]string{
			header.Error: wire.Text(state.Error, wire.MaxErrorBytes), header.Reason: string(state.Reason),
			header.ErrorType: wire.Text(state.ErrorType, wire.MaxErrorTypeBytes),
			header.Handler:   wire.Text(state.Handler, wire.MaxNameBytes),
		} {
			text, _ := p.Headers[key].(string)
			require.Equal(t, value, text, "the state is what was published: %s", key)
		}

		mine := wire.Strip(d.Headers, false)
		alone := p
		alone.Headers = mine
		least := headerFrameSize(alone) +
			leastSize(withArrival(&d, full), strings.Repeat("x", 26))

		removed, cut := p.Headers[header.Removed].(string)
		if limit == unlimited || least <= limit {
			require.False(t, cut)
			require.Equal(t, 2, state.Count)
			for key := range mine {
				require.Contains(t, p.Headers, key, "what fits is not removed")
			}

			return
		}

		require.True(t, cut)
		require.Equal(t, header.CountDead, state.Count)
		require.Equal(t, retry.ReasonTooLarge, state.Reason)
		require.Empty(t, state.Delay)
		require.Equal(t, "-1", p.Headers[header.Count])
		require.Equal(t, "too-large", p.Headers[header.Reason])
		require.NotContains(t, p.Headers, header.Delay, "it must not be routed to a retry queue as well")

		smallest, largest := 1<<30, 0
		for key, value := range mine {
			if _, kept := p.Headers[key]; kept && !header.IsPoison(key) {
				largest = max(largest, headerSize(key, value))
			} else if !kept {
				smallest = min(smallest, headerSize(key, value))
				require.Contains(t, removed, key)
			}
		}
		require.GreaterOrEqual(t, smallest, largest, "the largest go first")
	})
}

// Every property and every text at its bound, which chance does not find.
func TestLargestCopy(t *testing.T) {
	text := strings.Repeat("p", 255)
	d := &amqp091.Delivery{
		Headers: amqp091.Table{"CC": []any{strings.Repeat("p", 3000)}}, DeliveryMode: 2, Priority: 1,
		Timestamp:   time.Unix(1, 0),
		ContentType: text, ContentEncoding: text, CorrelationId: text, ReplyTo: text, MessageId: text, Type: text,
		AppId:    text,
		Exchange: text, RoutingKey: text, UserId: text, Expiration: "60000",
	}
	for i := range 7 {
		d.Headers[text[:200]+fmt.Sprint(i)] = strings.Repeat("x", 40_000)
	}

	for _, limit := range []int{6 << 10, 8 << 10, 16 << 10, 32 << 10, 128 << 10} {
		p, state := CopyOf(&CopyRequest{Delivery: d, State: fullState()}, limit)
		assert.Equal(t, retry.ReasonTooLarge, state.Reason)
		assert.NotEmpty(t, p.Headers[header.Removed])
		assert.LessOrEqual(t, len(fakebroker.HeaderFrame(p)), limit)
		assert.LessOrEqual(t, ours(p), wire.MaxOwnBytes)
	}
}

// A copy that became a dead letter does not expire in the dead-letter queue, whatever jitter its
// retry was to have. It has its own priority, and no header that says so.
func TestCopyOfTooLargeDoesNotExpire(t *testing.T) {
	for _, size := range []int{0, 10_000} {
		d := amqp091.Delivery{Headers: amqp091.Table{"large": strings.Repeat("x", size)}, Priority: 9}
		o := &CopyRequest{Delivery: &d, State: wire.State{Queue: "q", Count: 1, Delay: "30s"}, Wait: 20 * time.Second,
			LowerPriority: size > 0}
		p, state := CopyOf(o, 4096)
		assert.EqualValues(t, 9, p.Priority)
		assert.NotContains(t, p.Headers, header.Priority)
		if size == 0 {
			assert.Equal(t, 1, state.Count)
			assert.Equal(t, "20000", p.Expiration)
			continue
		}
		assert.Equal(t, retry.ReasonTooLarge, state.Reason)
		assert.Empty(t, p.Expiration)
	}
}

// Ours give way first, in the order of the wire format, and not earlier than they must.
func TestShrinkGivesUpAsLittleAsItMust(t *testing.T) {
	state := fullState()

	for step := 0; step <= wire.ShrinkSteps; step++ {
		small := state.Shrink(step)
		want := small.Fields(nil, "id")

		written := state
		got, fits := shrink(nil, &written, "id", fieldsSize(want))
		assert.True(t, fits)
		assert.Equal(t, headersOf(want), headersOf(got), "at step %d there is just room", step)
		assert.Equal(t, small.Headers("id"), written.Headers("id"))

		if step < wire.ShrinkSteps {
			written = state
			got, fits = shrink(nil, &written, "id", fieldsSize(want)-1)
			assert.True(t, fits)
			assert.Equal(t, state.Shrink(step+1).Headers("id"), headersOf(got))
		}
	}

	written := state
	_, fits := shrink(nil, &written, "id", leastSize(state, "id")-1)
	assert.False(t, fits)

	got, fits := shrink(nil, &state, "id", math.MaxInt)
	assert.True(t, fits)
	assert.Equal(t, state.Headers("id"), headersOf(got))
}

func TestRemoveLargest(t *testing.T) {
	const limit = 8 << 10
	headers := amqp091.Table{
		"small": "s", "b-6000": strings.Repeat("x", 6000), "a-6000": strings.Repeat("x", 6000),
		"5000": strings.Repeat("x", 5000),
		"list": []any{strings.Repeat("x", 7000)},
	}
	d := &amqp091.Delivery{Headers: headers, Body: []byte("body")}

	p, state := CopyOf(&CopyRequest{Delivery: d, State: wire.State{Count: 1, Delay: "30s", Attempts: 3, Queue: "q",
		Error: "boom"}}, limit)

	assert.Equal(t, "list, a-6000, b-6000", p.Headers[header.Removed])
	assert.Contains(t, p.Headers, "5000")
	assert.Contains(t, p.Headers, "small")
	assert.NotContains(t, p.Headers, "list")
	assert.Equal(t, "3", p.Headers[header.Attempts])
	assert.Equal(t, "boom", p.Headers[header.Error], "where there is room again, the error is told")
	assert.Equal(t, retry.ReasonTooLarge, state.Reason)
	assert.Equal(t, []byte("body"), p.Body)
	assert.Len(t, headers, 5)
}

func TestRemovedNamesAreBounded(t *testing.T) {
	headers := amqp091.Table{}
	for i := range 600 {
		headers[fmt.Sprintf("%03d%s", i, strings.Repeat("\xff世", 40))] = int64(i)
	}

	p, _ := CopyOf(&CopyRequest{Delivery: &amqp091.Delivery{Headers: headers}, State: fullState()}, 16<<10)

	removed, _ := p.Headers[header.Removed].(string)
	assert.NotEmpty(t, removed)
	assert.LessOrEqual(t, len(removed), 1020)
	assert.LessOrEqual(t, len(fakebroker.HeaderFrame(p)), 16<<10)
	assert.True(t, slices.Contains(strings.Split(removed, ""), "…"), "that it was cut is seen")
}

func TestEncodeCC(t *testing.T) {
	for want, headers := range map[string]amqp091.Table{
		"":               {"BCC": []any{"x"}},
		`["a","b"]`:      {"CC": []any{"a", "b"}},
		`"a"`:            {"CC": "a"},
		`null`:           {"CC": nil},
		`[]`:             {"CC": []any{}},
		`["NaN"]`:        {"CC": []any{nan}},
		`[{"k":"/w=="}]`: {"CC": []any{amqp091.Table{"k": []byte("\xff")}}},
	} {
		assert.Equal(t, want, encodeCC(headers))
	}
}

// What a broker adds on the return, as it encodes it, fits into what is kept free for it.
func TestReturns(t *testing.T) {
	death := func(exchange, queue, key string) amqp091.Table {
		return amqp091.Table{"count": int64(1), "exchange": exchange, "queue": queue, "reason": "expired",
			"routing-keys": []any{key}, "time": time.Unix(1, 0)}
	}
	const ladder = "amqpretry.delay.v1.100ms.10x6"
	frame := func(added amqp091.Table) int {
		headers := amqp091.Table{"a": "b"}
		maps.Copy(headers, added)

		return len(fakebroker.HeaderFrame(amqp091.Publishing{Headers: headers}))
	}

	for _, queue := range []string{"orders", strings.Repeat("q", 200)} {
		for strategy, way := range map[config.Strategy][]any{
			config.StrategyQueues: {death(queue+".retry", queue+".retry.10m", queue)},
			config.StrategyLadder: {
				death(ladder+".delivery", queue+".landing", "0.0.0.3.7.0.q."+queue),
				death(ladder+".level-1", ladder+".7s", "0.0.0.3.7.0.q."+queue),
				death(ladder+".level-2", ladder+".30s", "0.0.0.3.7.0.q."+queue),
			},
		} {
			plan, err := topology.New(queue, config.Policy{Strategy: strategy}, topology.Names{})
			require.NoError(t, err)
			first, last := way[len(way)-1].(amqp091.Table), way[0].(amqp091.Table)
			added := frame(amqp091.Table{
				"x-death":                way,
				"x-first-death-exchange": first["exchange"], "x-first-death-queue": first["queue"],
				"x-first-death-reason": "expired", "x-last-death-exchange": last["exchange"],
				"x-last-death-queue": last["queue"], "x-last-death-reason": "expired",
				"x-delivery-count": int64(3), "x-acquired-count": int64(3),
			}) - frame(nil)

			kept := NewReturns(plan).Size(37 * time.Second)
			assert.LessOrEqual(t, added, kept)
			assert.Less(t, kept, 2*added, "and not much more")
		}
	}
}

func headersOf(fields []wire.Field) map[string]string {
	headers := map[string]string{}
	for _, field := range fields {
		headers[field.Key] = field.Value
	}

	return headers
}
