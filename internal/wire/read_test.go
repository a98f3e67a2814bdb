package wire_test

import (
	"math"
	"testing"
	"time"

	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

const queue = "orders"

// reading is a policy of three retries in queue "orders", and death is the newest x-death.
func reading(death string) wire.Reading {
	return wire.Reading{
		Queue:        queue,
		MaxRetries:   3,
		Death:        death,
		IsRetryQueue: func(name, delay string) bool { return name == queue+".retry."+delay },
	}
}

// own are headers as we write them in queue "orders", with a count of any type.
func own(count any) map[string]any {
	return map[string]any{
		header.Version: "1", header.Queue: queue, header.Delay: "30s", header.Count: count,
		header.Attempts: "7", header.Replays: "1", header.Reason: "exhausted", header.Error: "boom",
		header.Deadline:     "2030-01-01T00:00:00.000Z",
		header.History:      `[{"n":6,"at":"2026-01-02T03:04:05.678Z","error":"boom"}]`,
		header.PoisonReason: "boom",
	}
}

func with(headers map[string]any, key string, value any) map[string]any {
	headers[key] = value
	return headers
}

func without(headers map[string]any, keys ...string) map[string]any {
	for _, key := range keys {
		delete(headers, key)
	}

	return headers
}

// The rows of the table in the contract, each with its cases.
func TestRead(t *testing.T) {
	const waited = queue + ".retry.30s"

	for name, test := range map[string]struct {
		headers map[string]any
		death   string
		kind    wire.Kind
		count   int
	}{
		// no queue, or another queue's, or nonsense: fresh
		"no headers":                    {nil, waited, wire.Fresh, 0},
		"only foreign headers":          {map[string]any{"a": "b"}, waited, wire.Fresh, 0},
		"no queue":                      {without(own("1"), header.Queue), waited, wire.Fresh, 0},
		"empty queue":                   {with(own("1"), header.Queue, ""), waited, wire.Fresh, 0},
		"another queue":                 {with(own("1"), header.Queue, "invoices"), waited, wire.Fresh, 0},
		"another queue's dead letter":   {with(own("-1"), header.Queue, "invoices"), "", wire.Fresh, 0},
		"another queue's strange count": {with(own("99"), header.Queue, "invoices"), "", wire.Fresh, 0},
		"queue is bytes":                {with(own("1"), header.Queue, []byte(queue)), waited, wire.Fresh, 0},
		"queue is a number":             {with(own("1"), header.Queue, int32(1)), waited, wire.Fresh, 0},
		"queue is a list":               {with(own("1"), header.Queue, []any{queue}), waited, wire.Fresh, 0},
		"queue is void":                 {with(own("1"), header.Queue, nil), waited, wire.Fresh, 0},
		"queue in another case":         {with(own("1"), header.Queue, "Orders"), waited, wire.Fresh, 0},

		// an unknown version: fresh, and told apart
		"no version":          {without(own("1"), header.Version), waited, wire.UnknownVersion, 0},
		"later version":       {with(own("1"), header.Version, "2"), waited, wire.UnknownVersion, 0},
		"version is a number": {with(own("1"), header.Version, int32(1)), waited, wire.UnknownVersion, 0},
		"later version, dead": {with(own("-1"), header.Version, "2"), "", wire.UnknownVersion, 0},
		"other queue and version": {with(with(own("1"), header.Version, "2"), header.Queue, "invoices"), "",
			wire.Fresh, 0},

		// own queue, count 1..n, and the broker's word: a retry
		"first retry":               {own("1"), waited, wire.Retry, 1},
		"last retry":                {own("3"), waited, wire.Retry, 3},
		"under a delay of its past": {with(own("2"), header.Delay, "77s"), queue + ".retry.77s", wire.Retry, 2},

		// own queue, count 1..n, without that death: fresh
		"metadata passed on":      {own("1"), "", wire.Fresh, 0},
		"last, passed on":         {own("3"), "", wire.Fresh, 0},
		"another queue's death":   {own("1"), "invoices.retry.30s", wire.Fresh, 0},
		"death in the main queue": {own("1"), queue, wire.Fresh, 0},
		"death under other delay": {own("1"), queue + ".retry.1s", wire.Fresh, 0},
		"no delay":                {without(own("1"), header.Delay), waited, wire.Fresh, 0},
		"delay is a number":       {with(own("1"), header.Delay, int64(30)), waited, wire.Fresh, 0},

		// own queue, count -1: a replay, whatever died before
		"replay":               {own("-1"), "", wire.Replay, 0},
		"replay after a death": {own("-1"), waited, wire.Replay, 0},

		// own queue, any other count: clamped to the policy, death or not
		"zero":                   {own("0"), waited, wire.Clamped, 0},
		"negative":               {own("-7"), waited, wire.Clamped, 0},
		"-2":                     {own("-2"), waited, wire.Clamped, 0},
		"one too many":           {own("4"), waited, wire.Clamped, 3},
		"huge":                   {own("1000000000"), "", wire.Clamped, 3},
		"beyond all integers":    {own("1000000000000000000000000000000"), "", wire.Clamped, 3},
		"no count":               {without(own("1"), header.Count), waited, wire.Clamped, 0},
		"empty":                  {own(""), waited, wire.Clamped, 0},
		"words":                  {own("two"), waited, wire.Clamped, 0},
		"space":                  {own(" 1"), waited, wire.Clamped, 0},
		"plus":                   {own("+1"), waited, wire.Clamped, 1},
		"leading zero":           {own("02"), waited, wire.Clamped, 2},
		"-01":                    {own("-01"), "", wire.Clamped, 0},
		"fraction":               {own("1.0"), waited, wire.Clamped, 0},
		"an int8":                {own(int8(2)), waited, wire.Clamped, 2},
		"an int16":               {own(int16(2)), waited, wire.Clamped, 2},
		"an int32":               {own(int32(2)), waited, wire.Clamped, 2},
		"an int64":               {own(int64(2)), waited, wire.Clamped, 2},
		"a byte":                 {own(uint8(2)), waited, wire.Clamped, 2},
		"a uint16":               {own(uint16(2)), waited, wire.Clamped, 2},
		"a uint32":               {own(uint32(2)), waited, wire.Clamped, 2},
		"an int32 -1":            {own(int32(-1)), "", wire.Clamped, 0},
		"lowest int8":            {own(int8(math.MinInt8)), "", wire.Clamped, 0},
		"highest int8":           {own(int8(math.MaxInt8)), "", wire.Clamped, 3},
		"lowest int16":           {own(int16(math.MinInt16)), "", wire.Clamped, 0},
		"highest int16":          {own(int16(math.MaxInt16)), "", wire.Clamped, 3},
		"lowest int32":           {own(int32(math.MinInt32)), "", wire.Clamped, 0},
		"highest int32":          {own(int32(math.MaxInt32)), "", wire.Clamped, 3},
		"lowest int64":           {own(int64(math.MinInt64)), "", wire.Clamped, 0},
		"highest int64":          {own(int64(math.MaxInt64)), "", wire.Clamped, 3},
		"highest byte":           {own(uint8(math.MaxUint8)), "", wire.Clamped, 3},
		"highest uint16":         {own(uint16(math.MaxUint16)), "", wire.Clamped, 3},
		"highest uint32":         {own(uint32(math.MaxUint32)), "", wire.Clamped, 3},
		"a float32":              {own(float32(2)), waited, wire.Clamped, 0},
		"a float64":              {own(math.Inf(1)), waited, wire.Clamped, 0},
		"a bool":                 {own(true), waited, wire.Clamped, 0},
		"a list":                 {own([]any{"1"}), waited, wire.Clamped, 0},
		"a table":                {own(map[string]any{"1": "1"}), waited, wire.Clamped, 0},
		"bytes":                  {own([]byte("1")), waited, wire.Clamped, 0},
		"a time":                 {own(time.Unix(1, 0)), waited, wire.Clamped, 0},
		"void":                   {own(nil), waited, wire.Clamped, 0},
		"not of any AMQP type":   {own(struct{}{}), waited, wire.Clamped, 0},
		"clamped under a policy": {own("2"), waited, wire.Retry, 2},
	} {
		t.Run(name, func(t *testing.T) {
			state, kind := wire.Read(test.headers, reading(test.death))

			assert.Equal(t, test.kind, kind)
			assert.Equal(t, test.count, state.Count)

			if kind == wire.Fresh || kind == wire.UnknownVersion {
				assert.Zero(t, state, "the whole set is dropped")
			} else {
				assert.Equal(t, queue, state.Queue)
				assert.Equal(t, 7, state.Attempts, "handler calls of earlier lives are never forgotten")
				assert.Len(t, state.History, 1)
			}
		})
	}
}

func TestReadUnderAPolicyWithoutRetries(t *testing.T) {
	r := reading(queue + ".retry.30s")
	r.MaxRetries = 0

	state, kind := wire.Read(own("2"), r)
	assert.Equal(t, wire.Clamped, kind, "what still waits under the policy of yesterday comes back")
	assert.Zero(t, state.Count)

	_, kind = wire.Read(own("-1"), r)
	assert.Equal(t, wire.Replay, kind)
}

func TestReadWithoutADeathAsksNobody(t *testing.T) {
	r := reading("")
	r.IsRetryQueue = func(string, string) bool { return true }

	_, kind := wire.Read(own("1"), r)
	assert.Equal(t, wire.Fresh, kind)
}

func TestReadReplay(t *testing.T) {
	headers := own("-1")
	headers[header.UUID] = "u"
	headers[header.FirstFailure] = "2026-01-02T03:04:05.678Z"
	headers[header.Exchange] = ""
	headers[header.RoutingKey] = "orders.eu"

	state, kind := wire.Read(headers, reading(""))

	assert.Equal(t, wire.Replay, kind)
	assert.Equal(t, wire.State{
		Count: 0, Attempts: 7, Replays: 2, Queue: queue, UUID: "u", Error: "boom",
		Arrival:      wire.NewArrival("", "orders.eu", "", "", ""),
		FirstFailure: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC),
		History: []retry.FailedCall{{Number: 6, At: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC), Error: "boom",
			Reason: retry.ReasonExhausted}},
	}, state, "history and first failure are kept; delay, reason and deadline are not, but the history has the reason")
}

func TestReadForgedCounters(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "-5": 0, "x": 0, "3": 3, "99999999999999999999": 0, "9223372036854775807": math.MaxInt32 - 1,
	} {
		headers := own("-1")
		headers[header.Attempts], headers[header.Replays] = text, text

		state, _ := wire.Read(headers, reading(""))
		assert.Equal(t, want, state.Attempts, text)
		assert.Equal(t, want+1, state.Replays, text)
	}
}

func TestReadForgedValues(t *testing.T) {
	headers := own("1")
	for _, key := range []string{
		header.Attempts, header.Replays, header.Topic, header.Handler, header.Host, header.Exchange, header.UUID,
		header.FirstFailure, header.LastFailure, header.Deadline, header.Reason, header.Error, header.ErrorType,
		header.History,
	} {
		headers[key] = []any{int32(1)}
	}

	state, kind := wire.Read(headers, reading(queue+".retry.30s"))
	assert.Equal(t, wire.Retry, kind)
	assert.Equal(t, wire.State{Count: 1, Queue: queue, Delay: "30s"}, state)
}

func TestReadForgedHistory(t *testing.T) {
	for name, text := range map[string]string{
		"not JSON":   "boom",
		"cut":        `[{"n":1`,
		"an object":  `{"n":1}`,
		"text as n":  `[{"n":"1"}]`,
		"null":       `null`,
		"empty list": `[]`,
		"too long":   "[" + string(make([]byte, wire.MaxHistoryBytes)) + "]",
		"blank pad":  "[" + blanks(wire.MaxHistoryBytes) + `{"n":1}]`,
	} {
		state, kind := wire.Read(with(own("1"), header.History, text), reading(queue+".retry.30s"))
		assert.Equal(t, wire.Retry, kind, name)
		assert.Empty(t, state.History, name)
	}

	state, _ := wire.Read(with(own("1"), header.History, `[{"n":1,"at":"yesterday","what":{}},{}]`),
		reading(queue+".retry.30s"))
	assert.Equal(t, []retry.FailedCall{{Number: 1}, {}}, state.History, "what is known is kept")
}

func TestStrip(t *testing.T) {
	kept := map[string]any{
		"a": "b", "x-custom": int64(1), "cc": "lower", "amqpretr": "", "xamqpretry-v": "", "x-deaths": "",
		"x-last-deat": "", "x-first-name": "",
		"void": nil, "list": []any{"x"}, "x-stream-offset": int64(9),
	}
	dropped := map[string]any{
		"x-death": []any{}, "x-first-death-queue": "q", "x-first-death-reason": "expired", "x-first-death-exchange": "",
		"x-last-death-queue": "q", "x-last-death-reason": "expired", "x-last-death-exchange": "",
		"x-delivery-count": int64(1),
		"x-acquired-count": int64(1), "CC": []any{"q"}, "BCC": []any{"q"}, "amqpretry-of-tomorrow": "1",
	}
	for _, key := range allKeys {
		dropped[key] = "x"
	}
	poison := map[string]any{"reason_poisoned": "r", "topic_poisoned": "t", "handler_poisoned": "h",
		"subscriber_poisoned": "s"}

	all := merged(kept, dropped, poison)
	before := merged(all)

	assert.Equal(t, merged(kept, poison), wire.Strip(all, false), "an application may have poisoned it itself")
	assert.Equal(t, kept, wire.Strip(all, true))
	assert.Equal(t, before, all, "the delivery stays as it is")
	assert.NotNil(t, wire.Strip(nil, false))
}

func TestPoisonKeysAreWatermills(t *testing.T) {
	for own, key := range map[string]string{
		header.PoisonReason: wmmiddleware.ReasonForPoisonedKey, header.PoisonTopic: wmmiddleware.PoisonedTopicKey,
		header.PoisonHandler:    wmmiddleware.PoisonedHandlerKey,
		header.PoisonSubscriber: wmmiddleware.PoisonedSubscriberKey,
	} {
		assert.Equal(t, key, own)
		assert.True(t, header.IsPoison(key), key)
	}
	assert.False(t, header.IsPoison("poisoned"))
}

// The spelling is a contract with what lies in queues and with other versions.
func TestKeys(t *testing.T) {
	assert.Equal(t, "1", header.FormatVersion)
	assert.Equal(t, []string{
		"amqpretry-v", "amqpretry-id", "amqpretry-count", "amqpretry-delay", "amqpretry-attempts", "amqpretry-queue",
		"amqpretry-topic", "amqpretry-handler", "amqpretry-host", "amqpretry-exchange", "amqpretry-routing-key",
		"amqpretry-expiration", "amqpretry-user-id", "amqpretry-cc", "amqpretry-uuid", "amqpretry-first-failure",
		"amqpretry-last-failure", "amqpretry-deadline", "amqpretry-reason", "amqpretry-error", "amqpretry-error-type",
		"amqpretry-history", "amqpretry-replays", "amqpretry-replay", "amqpretry-edits", "amqpretry-removed",
		"amqpretry-trace",
	}, allKeys)

	for _, key := range allKeys {
		assert.True(t, header.IsOwn(key), key)
	}
}

func TestReasons(t *testing.T) {
	assert.Equal(t, []retry.Reason{
		"exhausted", "permanent", "expired", "undecodable", "panic", "crashed", "unpublishable", "rejected",
		"delivery-limit",
		"maxlen", "too-large", "postponed-too-long",
	}, retry.Reasons())
}

var allKeys = []string{
	header.Version, header.ID, header.Count, header.Delay, header.Attempts, header.Queue, header.Topic, header.Handler,
	header.Host, header.Exchange, header.RoutingKey, header.Expiration, header.UserID, header.CC, header.UUID,
	header.FirstFailure, header.LastFailure, header.Deadline, header.Reason, header.Error, header.ErrorType,
	header.History, header.Replays, header.Replay, header.Edits, header.Removed,
	header.Trace,
}
