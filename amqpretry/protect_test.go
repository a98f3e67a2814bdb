package amqpretry_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

func protecting(p config.Protection) config.Policy {
	return config.Policy{Mode: config.ModeOff, Protect: p}
}

// What the user's own arguments say otherwise than the protection is refused, all at once, with who
// asks for it.
func TestNewRefusesOtherArgumentsThanTheProtection(t *testing.T) {
	t.Parallel()

	conf := durable()
	conf.Queue.Arguments = amqp091.Table{
		"x-queue-type": "classic", "x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "any",
		"x-overflow":             "drop-head",
		"x-dead-letter-strategy": "at-most-once", "x-delivery-limit": int64(20), "x-max-length": int64(5),
	}
	policies := config.Policies{
		Default: protecting(config.ProtectionArguments),
		Topics: map[string]config.Policy{
			"b": protecting(config.ProtectionArguments), "a": protecting(config.ProtectionArguments),
			"c": protecting(config.ProtectionPolicy),
		},
	}
	_, err := adapter.New(conf, amqpretry.Options{Policies: policies, Concurrency: -1})
	assert.ElementsMatch(t, []string{
		"Options.Concurrency",
		`Config.Queue.Arguments["x-queue-type"]`, `Config.Queue.Arguments["x-dead-letter-exchange"]`,
		`Config.Queue.Arguments["x-overflow"]`,
		`Config.Queue.Arguments["x-dead-letter-strategy"]`, `Config.Queue.Arguments["x-delivery-limit"]`,
	}, paths(err))
	for _, part := range []string{
		`Options.Policies.Default, Options.Policies.Topics["a"], Options.Policies.Topics["b"] asks for`,
		`"reject-publish"`, `got "drop-head"`, "left out, or 1000, got 20", `left out, or "", got "dlx"`,
	} {
		assert.ErrorContains(t, err, part)
	}
	assert.NotContains(t, err.Error(), `topics["c"]`)

	for _, protection := range []config.Protection{"", config.ProtectionNone, config.ProtectionPolicy} {
		_, err := adapter.New(conf, amqpretry.Options{Policies: config.Policies{Default: protecting(protection)}})
		require.NoError(t, err, protection)
	}
	conf.Queue.Arguments = topology.ProtectArguments("any")
	conf.Queue.Arguments["x-delivery-limit"], conf.Queue.Arguments["x-max-length"] = 1000, 5
	_, err = adapter.New(conf, amqpretry.Options{Policies: policies})
	require.NoError(t, err, "the same in the user's own words")
}

// builds is a topology builder of a user's own that records what it is to declare.
type builds struct {
	arguments map[string]amqp091.Table
	err       error
}

func (b *builds) builder() amqp.Builder {
	return func(_ *amqp091.Channel, queue, _ string, conf amqp.Config, _ watermill.LoggerAdapter) error {
		b.arguments[queue] = conf.Queue.Arguments
		return b.err
	}
}

// build builds the topology of topics as a stock subscriber would, without a broker: under the mode
// off the plan is empty.
func build(t *testing.T, policies config.Policies, arguments amqp091.Table, refusal error,
	logger watermill.LoggerAdapter, topics ...string) (*builds, []error) {
	t.Helper()
	b := &builds{arguments: map[string]amqp091.Table{}, err: refusal}
	conf := durable()
	conf.Queue.Arguments = arguments
	conf.TopologyBuilder = b.builder()
	retrier := retrierOf(t, conf, amqpretry.Options{Policies: policies, Logger: logger})

	var errs []error
	stock := retrier.Config()
	for _, topic := range topics {
		errs = append(errs, amqp.BuildTopology(stock, topic, stock.Queue.GenerateName(topic)))
	}

	return b, errs
}

// The builder of the user's is given his arguments with the protection of the topic, and his own
// map stays as it is.
func TestProtectionIsForItsTopicOnly(t *testing.T) {
	t.Parallel()

	users := amqp091.Table{"x-max-length": int64(5), "x-queue-type": "quorum"}
	before := maps.Clone(users)
	policies := config.Policies{
		Default: protecting(config.ProtectionNone),
		Topics: map[string]config.Policy{
			"a": protecting(config.ProtectionArguments), "b": protecting(config.ProtectionArguments),
			"c": protecting(config.ProtectionPolicy),
		},
	}
	b, errs := build(t, policies, users, nil, nil, "a", "b", "c", "d")
	require.NoError(t, errors.Join(errs...))

	for _, topic := range []string{"a", "b"} {
		expected := topology.ProtectArguments(topic + ".dlq")
		expected["x-max-length"] = int64(5)
		assert.Equal(t, expected, b.arguments[topic])
	}
	for _, topic := range []string{"c", "d"} {
		assert.Equal(t, before, b.arguments[topic])
	}
	assert.Equal(t, before, users)
}

// What depends on the topic is refused when that is known: another dead-letter queue, and a name
// that nobody could declare.
func TestProtectionOfATopicIsRefused(t *testing.T) {
	t.Parallel()

	policies := config.Policies{Default: protecting(config.ProtectionArguments)}
	b, errs := build(t, policies, amqp091.Table{"x-dead-letter-routing-key": "a.dlq"}, nil, nil, "a", "b")
	require.NoError(t, errs[0])
	assert.Equal(t, []string{`Config.Queue.Arguments["x-dead-letter-routing-key"]`}, paths(errs[1]))
	assert.ErrorContains(t, errs[1], `left out, or "b.dlq", got "a.dlq"`)
	assert.ErrorContains(t, errs[1], `topic "b"`)
	assert.NotContains(t, b.arguments, "b")

	long := strings.Repeat("q", 253)
	_, errs = build(t, policies, nil, nil, nil, long)
	var name *topology.NameError
	require.ErrorAs(t, errs[0], &name)
	assert.Equal(t, long+".dlq", name.Name)
}

// An existing queue cannot be protected by arguments: the error has the line that does it
// otherwise.
func TestProtectionErrorHasTheWayOut(t *testing.T) {
	t.Parallel()

	refused := func(reason string) error {
		return &amqp091.Error{Code: amqp091.PreconditionFailed, Reason: "PRECONDITION_FAILED - " + reason}
	}
	refusal := func(argument, received, current string) error {
		return refused("inequivalent arg '" + argument + "' for queue 'q' in vhost '/': received " + received +
			" but current is " + current)
	}
	line := topology.ProtectPolicy("/", "q", "q.dlq").SetCommand()
	arguments, none := config.ProtectionArguments, config.ProtectionNone

	for name, test := range map[string]struct {
		protect config.Protection
		err     error
		typed   bool
		has     []string
		hasNot  []string
	}{
		"without dead-letter exchange": {
			arguments, refusal("x-dead-letter-exchange", "the value '' of type 'longstr'", "none"), true,
			[]string{"x-dead-letter-exchange", `wanted "", found none`, "config.ProtectionPolicy",
				"replaces the policy", "\n" + line}, nil,
		},
		"another limit": {
			arguments, refusal("x-delivery-limit", "the value '1000' of type 'long'", "the value '5' of type "+
				"'signedint'"), true,
			[]string{"wanted 1000, found 5", line}, nil,
		},
		"a text that was cut": {arguments, refused("inequi"), true, []string{line}, nil},
		"a classic queue": {
			arguments, refusal("x-queue-type", "the value 'quorum' of type 'longstr'", "the value 'classic' of type "+
				"'longstr'"), true,
			[]string{"config.ProtectionNone", "found classic", line}, nil,
		},
		"an argument of the user's": {
			arguments, refusal("x-max-length", "none", "the value '5' of type 'long'"), false,
			[]string{"x-max-length", "ways out"}, []string{"set_policy"},
		},
		"another queue": {
			arguments, refused("inequivalent arg 'x-overflow' for queue 'other' in vhost '/': received none but " +
				"current is none"), false, nil, []string{"set_policy"},
		},
		"access refused": {
			arguments, &amqp091.Error{Code: amqp091.AccessRefused, Reason: "ACCESS_REFUSED - access to queue 'q' in " +
				"vhost '/' refused for user 'u'"}, false,
			nil, []string{"set_policy"},
		},
		"no protection": {
			none, refusal("x-dead-letter-exchange", "the value 'dlx' of type 'longstr'", "none"), false, nil,
			[]string{"set_policy", "has to stay"},
		},
		"protection taken away": {
			none, refusal("x-dead-letter-exchange", "none", "the value '' of type 'longstr'"), false,
			[]string{"if it was declared under config.ProtectionArguments, that has to stay"}, nil,
		},
		"protection taken away, the limit": {
			none, refusal("x-delivery-limit", "none", "the value '1000' of type 'signedint'"), false,
			[]string{"has to stay"}, nil,
		},
		"another limit, no protection": {
			none, refusal("x-delivery-limit", "none", "the value '5' of type 'signedint'"), false, nil,
			[]string{"has to stay"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, errs := build(t, config.Policies{Default: protecting(test.protect)}, nil, test.err, nil, "q")
			err := errs[0]
			var protection *topology.ProtectionError
			assert.Equal(t, test.typed, errors.As(err, &protection))
			for _, part := range test.has {
				assert.ErrorContains(t, err, part)
			}
			for _, part := range test.hasNot {
				assert.NotContains(t, err.Error(), part)
			}
			var broker *amqp091.Error
			require.ErrorAs(t, err, &broker)
			if broker.Code == amqp091.PreconditionFailed {
				var conflict *topology.ConflictError
				require.ErrorAs(t, err, &conflict)
			}
			if test.typed {
				assert.Equal(t, "q", protection.Queue)
				assert.Equal(t, topology.ProtectPolicy("/", "q", "q.dlq"), protection.Policy)
			}
		})
	}
}

const (
	canLose     = "RabbitMQ drops messages that are requeued too often: this quorum queue has no dead-letter exchange"
	aboutLimits = "see https://github.com/amqpretry/watermill-retry/blob/main/docs/how-to/" +
		"protect-a-queue.md#the-warning"
)

// A main queue that can lose messages is told of, once.
func TestDropsAreToldOnce(t *testing.T) {
	t.Parallel()

	logger := watermill.NewCaptureLogger()
	policies := config.Policies{
		Default: protecting(config.ProtectionNone),
		Topics: map[string]config.Policy{"told": protecting(config.ProtectionPolicy),
			"done": protecting(config.ProtectionArguments)},
	}
	_, errs := build(t, policies, amqp091.Table{"x-queue-type": "quorum"}, nil, logger, "a", "a", "told", "b", "done",
		"a")
	require.NoError(t, errors.Join(errs...))

	told := logged(logger, watermill.DebugLogLevel) // under policy off
	require.Len(t, told, 2)
	for i, queue := range []string{"a", "b"} {
		assert.Equal(t, canLose, told[i].Msg)
		assert.Equal(t, watermill.LogFields{
			"topic": queue, "amqp_queue_name": queue, "delivery_limit": "20 on RabbitMQ 4.0 and later",
			"error": aboutLimits,
		}, told[i].Fields)
	}

	for name, arguments := range map[string]amqp091.Table{
		"no type": nil, "classic": {"x-queue-type": "classic"}, "dead-letter exchange": {"x-queue-type": "quorum",
			"x-dead-letter-exchange": "x"},
		"unlimited": {"x-queue-type": "quorum", "x-delivery-limit": -1},
	} {
		logger := watermill.NewCaptureLogger()
		_, errs := build(t, config.Policies{Default: protecting(config.ProtectionNone)}, arguments, nil, logger, "a")
		require.NoError(t, errs[0])
		assert.Empty(t, logged(logger, watermill.DebugLogLevel), name)
	}
}

// logged is what was logged about the limits of queues.
func logged(logger *watermill.CaptureLoggerAdapter, level watermill.LogLevel) []watermill.CapturedMessage {
	return slices.DeleteFunc(logger.Captured()[level], func(m watermill.CapturedMessage) bool {
		return m.Msg != canLose
	})
}

// The policy is for the virtual host of the connection, however that is written.
func TestProtectPolicyVhost(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct{ uri, other, vhost string }{
		"none":          {"amqp://u:p@127.0.0.1:1", "", "/"},
		"slash":         {"amqp://u:p@127.0.0.1:1/", "", "/"},
		"escaped slash": {"amqp://u:p@127.0.0.1:1/%2F", "", "/"},
		"named":         {"amqp://u:p@127.0.0.1:1/shop", "", "shop"},
		"odd":           {"amqp://u:p@127.0.0.1:1/it%27s%2F%C3%A4", "", "it's/ä"},
		"options win":   {"amqp://u:p@127.0.0.1:1/shop", "other", "other"},
	} {
		conf := amqp.NewDurableQueueConfig(test.uri)
		conf.Connection.AmqpConfig = &amqp091.Config{Vhost: test.other, Heartbeat: time.Second}
		policy, err := retrierOf(t, conf, amqpretry.Options{}).ProtectPolicy("q")
		require.NoError(t, err, name)
		assert.Equal(t, topology.ProtectPolicy(test.vhost, "q", "q.dlq"), policy, name)
	}
}
