package topology_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// The texts are what RabbitMQ 3.10.8, 4.0.5 and 4.3.6 send.
func TestExplainConflict(t *testing.T) {
	for _, test := range []struct {
		text string
		want topology.ConflictError
	}{
		{
			"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'R' in vhost '/': received '2000' but " +
				"current is '1000'",
			topology.ConflictError{Kind: "queue", Name: "R", Argument: "x-message-ttl", Wanted: "2000", Found: "1000"},
		},
		{
			"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'R' in vhost '/': received none but " +
				"current is the value '1000' of type 'long'",
			topology.ConflictError{Kind: "queue", Name: "R", Argument: "x-message-ttl", Wanted: "none", Found: "1000"},
		},
		{
			"PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'R' in vhost '/': received " +
				"'o'd d' but current is ''",
			topology.ConflictError{Kind: "queue", Name: "R", Argument: "x-dead-letter-exchange", Wanted: "o'd d",
				Found: `""`},
		},
		{ // 3.10 of a queue without a type, where 4.x says 'classic'
			"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'Q' in vhost '/': received the value " +
				"'quorum' of type 'longstr' but current is none",
			topology.ConflictError{Kind: "queue", Name: "Q", Argument: "x-queue-type", Wanted: "quorum", Found: "none"},
		},
		{
			"PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'X' in vhost 'prod': received 'headers' but " +
				"current is 'fanout'",
			topology.ConflictError{Kind: "exchange", Name: "X", Argument: "type", Wanted: "headers", Found: "fanout"},
		},
		{
			"PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'Q' in vhost '/': received 'true' but " +
				"current is 'false'",
			topology.ConflictError{Kind: "queue", Name: "Q", Argument: "durable", Wanted: "true", Found: "false"},
		},
		{ // names may hold anything
			"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'a'b in vhost '/': c' in vhost '/': " +
				"received the value '7' of type 'long' but current is none",
			topology.ConflictError{Kind: "queue", Name: "a'b in vhost '/': c", Argument: "x-message-ttl", Wanted: "7",
				Found: "none"},
		},
		{
			"PRECONDITION_FAILED - invalid arg 'x-dead-letter-strategy' for queue 'C2' in vhost '/' of queue type " +
				"rabbit_classic_queue",
			topology.ConflictError{Kind: "queue", Name: "C2", Argument: "x-dead-letter-strategy"},
		},
		{
			"PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'C3' in vhost '/': " +
				"{value_too_large,315360000001}",
			topology.ConflictError{Kind: "queue", Name: "C3", Argument: "x-message-ttl"},
		},
		{ // the broker cuts its text at 255 bytes
			"PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-routing-key' for queue 'R' in vhost '/': received " +
				"none but current is the value 'long-na...",
			topology.ConflictError{Kind: "queue", Name: "R", Argument: "x-dead-letter-routing-key", Wanted: "none",
				Found: "long-na..."},
		},
		{
			"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'R' in vhost '/': received none but " +
				"current is the value '7' of ty...",
			topology.ConflictError{Kind: "queue", Name: "R", Argument: "x-message-ttl", Wanted: "none", Found: "7"},
		},
		{
			"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'R' in vhost '/': received none but " +
				"curr...",
			topology.ConflictError{Kind: "queue", Name: "R", Argument: "x-message-ttl"},
		},
		{
			"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '" + strings.Repeat("q", 184) + "...",
			topology.ConflictError{Kind: "queue", Name: "given", Argument: "x-message-ttl"},
		},
		{
			"PRECONDITION_FAILED - something new",
			topology.ConflictError{Kind: "exchange", Name: "given"},
		},
	} {
		broker := &amqp.Error{Code: amqp.PreconditionFailed, Reason: test.text, Server: true}
		err := topology.Explain("", "exchange", "given", fmt.Errorf("declare: %w", broker))
		var got *topology.ConflictError
		require.ErrorAs(t, err, &got)
		assert.ErrorIs(t, err, broker)
		test.want.Err = got.Err
		assert.Equal(t, test.want, *got)
		for _, part := range []string{got.Kind, fmt.Sprintf("%q", got.Name), got.Argument, got.Wanted, got.Found} {
			assert.ErrorContains(t, err, part)
		}
	}
}

func TestExplainAccess(t *testing.T) {
	for _, test := range []struct {
		text string
		want topology.AccessError
	}{
		{
			"ACCESS_REFUSED - access to queue 'R' in vhost '/' refused for user 'reader'",
			topology.AccessError{Kind: "queue", Name: "R", User: "reader"},
		},
		{
			"ACCESS_REFUSED - configure access to queue 'R' in vhost '/' refused for user 'reader'",
			topology.AccessError{Kind: "queue", Name: "R", User: "reader", Permission: "configure"},
		},
		{
			"ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'reader'",
			topology.AccessError{Kind: "exchange", Name: "amq.default", User: "reader", Permission: "write"},
		},
		{
			"ACCESS_REFUSED - read access to exchange 'read access to queue 'x' in vhost '/' refused for user 'it's'",
			topology.AccessError{Kind: "exchange", Name: "read access to queue 'x", User: "it's", Permission: "read"},
		},
		{
			"ACCESS_REFUSED - configure access to queue '" + strings.Repeat("q", 200) + "...",
			topology.AccessError{Kind: "queue", Name: "given", Permission: "configure"},
		},
	} {
		broker := &amqp.Error{Code: amqp.AccessRefused, Reason: test.text, Server: true}
		err := topology.Explain("", "queue", "given", broker)
		var got *topology.AccessError
		require.ErrorAs(t, err, &got)
		assert.ErrorIs(t, err, broker)
		test.want.Err = broker
		assert.Equal(t, test.want, *got)
		for _, part := range []string{got.Kind, fmt.Sprintf("%q", got.Name), got.Permission, got.User, "amq.default",
			"AssumeTopology"} {
			assert.ErrorContains(t, err, part)
		}
	}
}

// No permission helps where a token has expired.
func TestExplainExpired(t *testing.T) {
	broker := &amqp.Error{Code: amqp.AccessRefused, Reason: "ACCESS_REFUSED - write access to exchange 'x' in vhost " +
		"'/' refused for user 's', backend rabbit_auth_backend_oauth2 returned an error: " +
		"Provided JWT token has expired"}
	err := topology.Explain("", "exchange", "x", broker)
	assert.ErrorContains(t, err, `exchange "x": the connection's token has expired`)
	assert.ErrorIs(t, err, broker)
	var access *topology.AccessError
	assert.NotErrorAs(t, err, &access)
}

func TestExplainExclusive(t *testing.T) {
	for _, test := range []struct {
		code       int
		text, says string
		want       topology.ExclusiveError
	}{
		{
			amqp.AccessRefused, "ACCESS_REFUSED - queue 'q' in vhost 'it' in exclusive use",
			"rabbitmqctl list_consumers -p 'it'",
			topology.ExclusiveError{Queue: "q", VirtualHost: "it"},
		},
		{
			amqp.AccessRefused, "ACCESS_REFUSED - queue '" + strings.Repeat("q", 230) + "...",
			"rabbitmqctl list_consumers -p '/'",
			topology.ExclusiveError{Queue: "given"},
		},
		{
			amqp.ResourceLocked, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. " +
				"It could be originally declared on another connection or the exclusive property value does not " +
				"match that of the original declaration.", "rabbitmqctl list_queues -p '/' name owner_pid",
			topology.ExclusiveError{Queue: "q", VirtualHost: "/", Owned: true},
		},
	} {
		broker := &amqp.Error{Code: test.code, Reason: test.text, Server: true}
		for _, err := range []error{
			topology.Explain("", rabbitmq.KindQueue, "given", broker), topology.Explain(rabbitmq.UseConsume,
				rabbitmq.KindQueue, "given", broker),
		} {
			var got *topology.ExclusiveError
			require.ErrorAs(t, err, &got)
			require.ErrorIs(t, err, broker)
			test.want.Err = broker
			assert.Equal(t, test.want, *got)
			assert.ErrorContains(t, err, test.says)
			assert.NotContains(t, err.Error(), "permission")
		}
	}
}

// Who may not consume is not helped by an operator who provisions the queue.
func TestExplainUse(t *testing.T) {
	broker := &amqp.Error{Code: amqp.AccessRefused, Reason: "ACCESS_REFUSED - access to queue 'q' in vhost '/' " +
		"refused for user 'reader'"}
	for use, permission := range map[string]string{rabbitmq.UseConsume: "read", rabbitmq.UsePublish: "write",
		rabbitmq.UseDeclare: "configure", rabbitmq.UseLook: "sufficient"} {
		err := topology.Explain(use, rabbitmq.KindQueue, "given", broker)
		var got *topology.AccessError
		require.ErrorAs(t, err, &got)
		assert.Equal(t, topology.AccessError{Kind: "queue", Name: "q", User: "reader", Use: use, Err: broker}, *got)
		assert.ErrorContains(t, err, fmt.Sprintf(`queue "q": no %s permission for user "reader" to %s; grant it`,
			permission, use))
		assert.NotContains(t, err.Error(), "AssumeTopology")
	}

	lost := errors.New("connection reset")
	assert.Equal(t, lost, topology.Explain(rabbitmq.UseConsume, rabbitmq.KindQueue, "q", lost))
	assert.NoError(t, topology.Explain(rabbitmq.UseConsume, rabbitmq.KindQueue, "q", nil))
}

func TestExplainAnythingElse(t *testing.T) {
	require.NoError(t, topology.Explain("", "queue", "q", nil))

	plain := errors.New("connection reset")
	err := topology.Explain("", "queue", "q", plain)
	assert.Equal(t, &topology.DeclareError{Kind: "queue", Name: "q", Err: plain}, err)
	assert.EqualError(t, err, `queue "q": cannot declare: connection reset`)

	missing := &amqp.Error{Code: amqp.NotFound, Reason: "NOT_FOUND - no exchange 'x' in vhost '/'"}
	assert.Equal(t, &topology.DeclareError{Kind: "exchange", Name: "x", Err: missing},
		topology.Explain("", "queue", "q", missing))

	again := fmt.Errorf("subscribe: %w", err)
	assert.Same(t, again, topology.Explain("", "queue", "other", again), "what is explained already stays as it is")
}

func TestErrorTextsNameTheWaysOut(t *testing.T) {
	explain := func(reason string) string {
		return topology.Explain("", "", "", &amqp.Error{Code: amqp.PreconditionFailed, Reason: reason}).Error()
	}
	assert.Equal(t, `queue "orders" exists with another x-queue-type: wanted none, found quorum; ways out: `+
		`declare it as it is, if it is your main queue (Config.Queue.Arguments["x-queue-type"]); `+
		`set another name for a retry or dead-letter queue in Names, or another Prefix for a ladder; delete it after it is empty (it is declared again); `+
		`or let an operator provision it, and set AssumeTopology `+
		`(Exception (406) Reason: "inequivalent arg 'x-queue-type' for queue 'orders' in vhost '/': received none but current is the value 'quorum' of type 'longstr'")`,
		explain("inequivalent arg 'x-queue-type' for queue 'orders' in vhost '/': received none but current is the "+
			"value 'quorum' of type 'longstr'"))
	assert.Contains(t, explain("inequivalent arg 'x-max-length' for queue 'orders' in vhost '/': received the value "+
		"'5' of type 'long' but current is none"),
		`no Config.Queue.Arguments["x-max-length"]; a policy on the broker`)
	assert.Contains(t, explain("inequivalent arg 'durable' for queue 'orders' in vhost '/': received 'true' but "+
		"current is 'false'"), `(in Config.Queue)`)
	assert.Contains(t, explain("inequivalent arg 'type' for exchange 'x' in vhost '/': received 'headers' but "+
		"current is 'fanout'"), `declare it as it is, if it is yours (Config.Exchange); set another name in Names`)
	assert.Contains(t, explain("invalid arg 'x-foo' for queue 'q' in vhost '/' of queue type rabbit_classic_queue"),
		`refuses the argument x-foo`)
}

type refusingChannel struct {
	recorder
	queueErr error
}

func (r *refusingChannel) QueueDeclare(string, bool, bool, bool, bool, amqp.Table) (amqp.Queue, error) {
	return amqp.Queue{}, r.queueErr
}

func TestDeclareKnowsWhatItWantedWhenTheBrokerCutsItsText(t *testing.T) {
	queue := strings.Repeat("q", 240)
	plan := mustPlan(t, queue, config.Policy{Delays: []time.Duration{time.Second}})
	err := plan.Declare(&refusingChannel{queueErr: &amqp.Error{Code: amqp.PreconditionFailed,
		Reason: "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '" + strings.Repeat("q", 184) +
			"..."}})
	var conflict *topology.ConflictError
	require.ErrorAs(t, err, &conflict)
	assert.Equal(t, queue+".retry.1s", conflict.Name)
	assert.Equal(t, "1000", conflict.Wanted)
	assert.ErrorContains(t, err, "wanted 1000, found another value")
}

// No permission helps where a name is the broker's own.
func TestExplainReserved(t *testing.T) {
	broker := &amqp.Error{Code: amqp.AccessRefused,
		Reason: "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"}
	for _, err := range []error{
		topology.Explain("", "exchange", "amq.mine", broker),
		topology.Explain(rabbitmq.UseDeclare, "exchange", "amq.mine", broker),
	} {
		var name *topology.NameError
		require.ErrorAs(t, err, &name)
		require.ErrorIs(t, err, broker)
		assert.NotContains(t, err.Error(), "permission")
	}
}
