package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// acknowledger is what tells a delivery from a ghost.
type acknowledger struct{}

func (acknowledger) Ack(uint64, bool) error        { return nil }
func (acknowledger) Nack(uint64, bool, bool) error { return nil }
func (acknowledger) Reject(uint64, bool) error     { return nil }

func delivered(headers amqp091.Table) amqp091.Delivery {
	return amqp091.Delivery{Acknowledger: acknowledger{}, Headers: headers, Body: []byte("body")}
}

func TestCapturesForgetMessagesThatAreGone(t *testing.T) {
	captures := NewCaptures()
	kept := captures.Unmarshal(amqp.DefaultMarshaler{}, delivered(nil))
	for range 1000 {
		captures.Unmarshal(amqp.DefaultMarshaler{}, delivered(nil))
	}

	await.Until(t, func() bool {
		runtime.GC()
		captures.mu.Lock()
		defer captures.mu.Unlock()

		return len(captures.weak) == 1
	})

	require.NotNil(t, captures.find(kept), "who is still alive is still known")
	assert.LessOrEqual(t, captures.Len(), mostRecent+1)
	assert.Nil(t, captures.find(message.NewMessage("", nil)))
	runtime.KeepAlive(kept)
}

// A message that was not settled may be handled again, by a middleware outside of ours.
func TestCapturesForgetMessagesThatAreSettled(t *testing.T) {
	errFail := errors.New("cannot be settled")
	for _, err := range []error{nil, errFail} {
		s := stock(testSource(config.Policy{}), nil)
		msg := s.Captures.Unmarshal(amqp.DefaultMarshaler{}, delivered(nil))
		_, got := s.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, err })(msg)
		assert.Equal(t, err, got)
		assert.Equal(t, err != nil, s.Captures.find(msg) != nil)
	}
}

// What cannot be decoded is settled again when a middleware outside of ours handles it again: its
// delivery is in no context.
func TestCapturesRememberWhatCannotBeDecoded(t *testing.T) {
	s := stock(testSource(config.Policy{}), nil)
	s.Engine.Decide = func(f retry.Failure) error { return retry.Drop(f.Err) }
	msg := s.Captures.Unmarshal(rejecting{}, delivered(nil))
	called := 0
	chain := s.Middleware(func(*message.Message) ([]*message.Message, error) { called++; return nil, nil })
	for range 2 {
		_, err := chain(msg)
		require.NoError(t, err)
	}
	assert.Zero(t, called)
}

// Large messages are not held alive.
func TestCapturesHoldFewBytes(t *testing.T) {
	captures := NewCaptures()
	for range mostRecent {
		d := delivered(nil)
		d.Body = make([]byte, mostBytes/2)
		captures.Unmarshal(amqp.DefaultMarshaler{}, d)
	}
	assert.LessOrEqual(t, len(captures.recent), 2)

	msg := captures.Unmarshal(amqp.DefaultMarshaler{}, delivered(nil))
	captures.forget(msg)
	captures.forget(msg)
	for msg := range captures.recent {
		captures.forget(msg)
	}
	assert.Zero(t, captures.bytes)
}

func TestCapturesUnmarshalNeverFails(t *testing.T) {
	captures := NewCaptures()
	d := delivered(amqp091.Table{"a": int64(1), "amqpretry-v": "1"})
	d.MessageId = "id"

	msg := captures.Unmarshal(rejecting{}, d)
	assert.Equal(t, "body", string(msg.Payload))
	assert.Equal(t, message.Metadata{"a": "1"}, msg.Metadata)
	assert.Equal(t, "id", msg.UUID)

	captured := captures.find(msg)
	require.NotNil(t, captured)
	assert.Equal(t, errFuzz, captured.err)
	assert.True(t, captured.nameless)
	assert.Equal(t, d, captured.delivery)
}

func TestNamesOfMessages(t *testing.T) {
	for name, test := range map[string]struct {
		own, header, id string
		want            string
		nameless        bool
	}{
		"its own":              {"own", "header", "id", "own", false},
		"of its first failure": {"", "header", "id", "header", true},
		"the message id":       {"", "", "id", "id", true},
		"none yet":             {"", "", "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			d := delivered(amqp091.Table{header.UUID: test.header, amqp.DefaultMessageUUIDHeaderKey: test.own})
			d.MessageId = test.id

			captures := NewCaptures()
			msg := captures.Unmarshal(amqp.DefaultMarshaler{}, d)
			assert.Equal(t, test.want, msg.UUID)
			assert.Equal(t, test.nameless, captures.find(msg).nameless)

			assert.Equal(t, cmp.Or(test.header, test.id), codec.MessageUUID(wire.State{UUID: test.header}, &d))
		})
	}
}

func TestIdentify(t *testing.T) {
	d := &amqp091.Delivery{MessageId: "id"}

	assert.Equal(t, "id", codec.Identify(wire.State{}, d, true).UUID)
	assert.Equal(t, "known", codec.Identify(wire.State{UUID: "known"}, d, true).UUID, "it stays the same over all "+
		"attempts")
	assert.Empty(t, codec.Identify(wire.State{}, d, false).UUID, "the publisher gave it a name of its own")

	a, b := codec.Identify(wire.State{}, &amqp091.Delivery{}, true).UUID,
		codec.Identify(wire.State{}, &amqp091.Delivery{}, true).UUID
	assert.NotEmpty(t, a)
	assert.NotEqual(t, a, b)
}

func stock(queue Queue, err error) Stock {
	return Stock{
		Captures: NewCaptures(), Logger: watermill.NopLogger{}, Engine: &engine.Engine{Logger: watermill.NopLogger{}},
		Queue: func(string) (*Queue, error) { return &queue, err },
	}
}

func TestStockMiddlewareFindsTheDelivery(t *testing.T) {
	s := stock(testSource(config.Policy{Retries: 2}), nil)
	msg := s.Captures.Unmarshal(amqp.DefaultMarshaler{}, delivered(amqp091.Table{
		header.Version: "1", header.Queue: "orders", header.Count: "1", header.Delay: "1s", header.Error: "boom",
		"x-death": []any{amqp091.Table{"queue": "orders.retry.1s"}},
	}))
	msg.SetContext(context.WithValue(context.Background(), ctxKey{}, "subscriber's")) // as stock subscribers do

	handled := false
	_, err := s.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		handled = true
		attempt, ok := retry.AttemptFromContext(msg.Context())
		assert.True(t, ok)
		assert.WithinDuration(t, time.Now(), attempt.Since, time.Minute)
		attempt.Since = time.Time{}
		assert.Equal(t, retry.Attempt{Number: 2, Try: 1, Failures: 1, MaxRetries: 2, LastError: "boom",
			Queue: "orders"}, attempt)
		assert.Equal(t, "subscriber's", msg.Context().Value(ctxKey{}))
		assert.Equal(t, message.Metadata{}, msg.Metadata)

		return nil, nil
	})(msg)
	require.NoError(t, err)
	assert.True(t, handled)
}

type ctxKey struct{}

func TestStockMiddlewareServesItsOwner(t *testing.T) {
	s := stock(testSource(config.Policy{}), nil)
	msg := s.Captures.Unmarshal(amqp.DefaultMarshaler{}, delivered(nil))
	chain := s.Middleware(middleware.Retry{Of: s.Engine}.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, retry.Drop(errors.New("boom"))
	}))

	_, err := chain(msg)
	require.NoError(t, err, "a drop is settled without a broker")
}

func TestStockMiddlewareLeavesOthersAlone(t *testing.T) {
	errHandler := errors.New("boom")

	for name, test := range map[string]struct {
		msg    func(Stock) *message.Message
		policy config.Policy
		known  bool
	}{
		"not captured": {func(Stock) *message.Message { return message.NewMessage("", nil) }, config.Policy{}, false},
		"policy off": {func(s Stock) *message.Message {
			return s.Captures.Unmarshal(amqp.DefaultMarshaler{},
				delivered(amqp091.Table{"x-delivery-count": int64(99)}))
		}, config.Policy{Mode: config.ModeOff}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := stock(testSource(test.policy), nil)
			msg := test.msg(s)

			_, err := s.Middleware(func(got *message.Message) ([]*message.Message, error) {
				assert.Same(t, msg, got)
				assert.Equal(t, test.known, engine.HasDelivery(got.Context(), s.Engine), "it is the retrier's")
				return nil, errHandler
			})(msg)
			assert.Equal(t, errHandler, err)
		})
	}
}

func TestStockMiddlewareKeepsFromHandlers(t *testing.T) {
	errSource := errors.New("no queue")
	for name, test := range map[string]struct {
		stock Stock
		d     amqp091.Delivery
		want  error
	}{
		"ghost":         {stock(testSource(config.Policy{}), nil), amqp091.Delivery{}, errGhost},
		"unknown queue": {stock(Queue{}, errSource), delivered(nil), errSource},
	} {
		t.Run(name, func(t *testing.T) {
			msg := test.stock.Captures.Unmarshal(amqp.DefaultMarshaler{}, test.d)
			_, err := test.stock.Middleware(func(*message.Message) ([]*message.Message, error) {
				assert.Fail(t, "a handler was called")
				return nil, nil
			})(msg)
			assert.ErrorIs(t, err, test.want)
		})
	}
}

func TestStockDeliveryTellsWhatWasCarriedOut(t *testing.T) {
	queue := testSource(config.Policy{})
	judge := &engine.Engine{}
	d := &stockDelivery{engine: judge, queue: &queue, captured: &capture{delivery: delivered(nil)}}

	assert.NoError(t, d.Settle(t.Context(), &engine.Settlement{Verdict: retry.Verdict{Action: retry.ActionRequeue}}))
	assert.NoError(t, d.Settle(t.Context(), &engine.Settlement{Verdict: retry.Verdict{Action: retry.ActionDrop}}))
	assert.Same(t, judge, d.Engine())
	assert.Equal(t, "orders", d.Queue())
	assert.False(t, d.isGone())
}

func TestWaitUntil(t *testing.T) {
	assert.True(t, connection.WaitUntil(time.Now().Add(time.Minute), func() {}))

	release := make(chan struct{})
	started := time.Now()
	assert.False(t, connection.WaitUntil(started.Add(10*time.Millisecond), func() { <-release }))
	assert.GreaterOrEqual(t, time.Since(started), 10*time.Millisecond)
	assert.False(t, connection.WaitUntil(started, func() { <-release }), "the deadline is over already")
	close(release)
}

func TestHeldError(t *testing.T) {
	errCause := errors.New("nacked")
	err := fmt.Errorf("x: %w", &topology.HeldError{Queue: "q", Exchange: "q.retry", Held: 3,
		For: 1500 * time.Millisecond, Err: errCause})

	var held *topology.HeldError
	require.ErrorAs(t, err, &held)
	assert.Equal(t, 3, held.Held)
	assert.ErrorIs(t, err, errCause)
	assert.ErrorContains(t, err,
		`3 failed deliveries of queue "q" are held, one for 1.5s: exchange "q.retry" does not take their copies: nacked`)

	held.Err = nil
	assert.ErrorContains(t, held, "the broker does not answer")
}
