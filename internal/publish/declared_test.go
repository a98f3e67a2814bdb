package publish

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

var errEnded = errors.New("ended")

// A caller closes the channel as soon as DeclareHere returns. So DeclareHere must not return before
// the caller's declaration ends.
func TestObject_DeclareHereWaitsForItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		var object Object
		open, answer := true, make(chan error)
		returned := make(chan error)
		go func() {
			err := object.DeclareHere(ctx, nil, time.Now(), func() error {
				err := <-answer
				assert.True(t, open, "the channel was closed during the declaration")

				return err
			})
			open = false
			returned <- err
		}()

		synctest.Wait()
		cancel(errEnded)
		for _, do := range []func(context.Context, *connection.Link, time.Time, func() error) error{
			object.Declare, object.DeclareHere} {
			require.ErrorIs(t, do(ctx, nil, time.Now(), nil), errEnded, "who joins gives up")
		}
		require.ErrorContains(t, object.Declare(t.Context(), nil, time.Now(), nil), "has not answered for 30s")
		long, end := context.WithTimeout(t.Context(), time.Hour)
		defer end()
		require.ErrorIs(t, object.DeclareHere(long, nil, time.Now(), nil), context.DeadlineExceeded,
			"who bounds the wait himself")

		select {
		case err := <-returned:
			t.Fatalf("returned %v before the answer", err)
		default:
		}
		answer <- nil
		require.NoError(t, <-returned, "the answer, although the context has ended")
	})
}

func TestObject_DoesNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var object Object
		n := 0
		count := func() error {
			n++
			return nil
		}

		began := time.Now()
		<-time.After(time.Second)
		require.NoError(t, object.Declare(t.Context(), nil, began, count))
		require.NoError(t, object.DeclareHere(t.Context(), nil, began, count))
		assert.Equal(t, 1, n, "it has succeeded since")

		<-time.After(time.Second)
		require.ErrorIs(t, object.DeclareHere(t.Context(), nil, time.Now(), func() error { return errEnded }), errEnded)
		require.NoError(t, object.Declare(t.Context(), nil, time.Now(), count))
		assert.Equal(t, 2, n, "the last one has failed")
	})
}

// Each link is asked for what is there: a connection that comes back may lead to another broker. A
// declaration that an earlier link does not answer holds up nobody.
func TestObject_OncePerLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &connection.Link{}, &connection.Link{}
		var object Object
		n := 0
		count := func() error {
			n++
			return nil
		}
		assert.False(t, object.WasDeclared())
		for i, link := range []*connection.Link{first, first, second, second, first} {
			require.NoError(t, object.Declare(t.Context(), link, time.Time{}, count))
			assert.Equal(t, []int{1, 1, 2, 2, 3}[i], n)
		}
		require.NoError(t, object.Declare(t.Context(), nil, time.Time{}, count))
		assert.Equal(t, 3, n, "over whatever link")
		assert.True(t, object.WasDeclared())
		object.Forget()
		assert.False(t, object.WasDeclared())

		silent := make(chan error)
		go func() { _ = object.Declare(t.Context(), first, time.Time{}, func() error { return <-silent }) }()
		synctest.Wait()
		require.NoError(t, object.Declare(t.Context(), second, time.Time{}, count))
		silent <- nil
		synctest.Wait()
		require.NoError(t, object.Declare(t.Context(), second, time.Time{}, count))
		assert.Equal(t, 4, n, "the late answer of the first link changes nothing")
	})
}

// declarations counts what is declared.
type declarations struct {
	names map[string]int
	err   error // of all further declarations
}

func (d *declarations) count(name string) error {
	if d.err == nil {
		d.names[name]++
	}

	return d.err
}

func (d *declarations) ExchangeDeclare(name, _ string, _, _, _, _ bool, _ amqp091.Table) error {
	return d.count(name)
}

func (d *declarations) ExchangeBind(destination, _, source string, _ bool, _ amqp091.Table) error {
	return d.count(source + "->" + destination)
}

func (d *declarations) QueueDeclare(name string, _, _, _, _ bool, _ amqp091.Table) (amqp091.Queue, error) {
	return amqp091.Queue{}, d.count(name)
}

func (d *declarations) QueueBind(name, _, exchange string, _ bool, _ amqp091.Table) error {
	return d.count(exchange + "->" + name)
}

// What plans share is declared once a minute, each part by itself, and again after an error.
func TestDeclarePlan_SharedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		planOf := func(queue string, delays ...time.Duration) topology.Plan {
			policy := config.Policy{Delays: delays, Strategy: config.StrategyShared}
			plan, err := topology.New(queue, policy, topology.Names{})
			require.NoError(t, err)

			return plan
		}
		a, b := planOf("a", time.Second, time.Minute), planOf("b", time.Second, time.Hour)
		shared := a.RetryExchange
		var declared Declared
		channel := &declarations{names: map[string]int{}}
		declare := func(plan topology.Plan) error { return declared.DeclarePlan(t.Context(), nil, channel, plan) }

		require.NoError(t, declare(a))
		require.NoError(t, declare(b))
		want := map[string]int{"a.dlq": 1, "b.dlq": 1, shared + ".return->a": 1, shared + ".return->b": 1}
		for _, name := range []string{shared, shared + ".return"} {
			want[name] = 1
		}
		for _, delay := range []string{".1s", ".1m", ".1h"} {
			want[shared+delay], want[shared+"->"+shared+delay] = 1, 1
		}
		assert.Equal(t, want, channel.names)

		<-time.After(subscribedAge)
		require.NoError(t, declare(a))
		assert.Equal(t, 2, channel.names[shared])
		assert.Equal(t, 2, channel.names[shared+".1m"])
		assert.Equal(t, 1, channel.names[shared+".1h"])

		for range 3 { // also over other links
			require.NoError(t, declared.DeclarePlan(t.Context(), &connection.Link{}, channel, a))
		}
		assert.Equal(t, 2, channel.names[shared])

		channel.err = errEnded
		require.ErrorIs(t, declare(a), errEnded)
		channel.err = nil
		require.NoError(t, declare(a))
		assert.Equal(t, 3, channel.names[shared], "after an error")
	})
}
