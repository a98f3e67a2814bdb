package topology_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// definitionsFile is what an operator's tools see.
type definitionsFile struct {
	Exchanges []struct {
		Name, Vhost, Type string
		Durable, Internal bool
		AutoDelete        bool `json:"auto_delete"`
		Arguments         map[string]any
	}
	Queues []struct {
		Name, Vhost string
		Durable     bool
		AutoDelete  bool `json:"auto_delete"`
		Arguments   map[string]any
	}
	Bindings []struct {
		Source, Vhost, Destination string
		DestinationType            string `json:"destination_type"`
		RoutingKey                 string `json:"routing_key"`
		Arguments                  map[string]any
	}
}

func readDefinitions(t *testing.T, file []byte) (f definitionsFile) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(string(file)))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&f), string(file))
	return f
}

// All of the plan is in the file, with the main queue, its exchange and its binding, all durable
// and in the vhost.
func TestDefinitionsHaveThePlan(t *testing.T) {
	for name, policy := range map[string]config.Policy{
		"queue":       {Delays: []time.Duration{time.Second, time.Hour}},
		"classic":     {Delays: []time.Duration{time.Second}, ClassicQueues: true},
		"shared":      {Delays: []time.Duration{time.Second, time.Hour}, Strategy: config.StrategyShared},
		"dead-letter": {Mode: config.ModeDeadLetter},
		"off":         {Mode: config.ModeOff},
	} {
		t.Run(name, func(t *testing.T) {
			plan := mustPlan(t, "orders", policy)
			file, err := topology.Definitions("vh", topology.MainQueue{
				Plan: plan, Arguments: amqp.Table{"x-queue-type": "quorum"},
				Exchanges: []topology.Exchange{{Name: "events", Type: "topic", AutoDelete: true, Internal: true,
					Arguments: amqp.Table{"alternate-exchange": "alt"}}},
				Bindings: []topology.Binding{{Exchange: "events", Queue: "orders", Key: "a.*"}},
			})
			require.NoError(t, err)
			f := readDefinitions(t, file)

			require.Len(t, f.Exchanges, 1+len(plan.Exchanges))
			assert.Equal(t, "events", f.Exchanges[0].Name)
			assert.Equal(t, "topic", f.Exchanges[0].Type)
			assert.False(t, f.Exchanges[0].Durable)
			assert.True(t, f.Exchanges[0].AutoDelete)
			assert.True(t, f.Exchanges[0].Internal)
			assert.Equal(t, map[string]any{"alternate-exchange": "alt"}, f.Exchanges[0].Arguments)
			for i, x := range plan.Exchanges {
				found := f.Exchanges[i+1]
				assert.Equal(t, []any{x.Name, x.Type, "vh", true, false, false},
					[]any{found.Name, found.Type, found.Vhost, found.Durable, found.AutoDelete, found.Internal})
			}

			require.Len(t, f.Queues, 1+len(plan.Queues))
			assert.Equal(t, map[string]any{"x-queue-type": "quorum"}, f.Queues[0].Arguments)
			for i, q := range append([]topology.Queue{{Name: "orders",
				Arguments: amqp.Table{"x-queue-type": "quorum"}}}, plan.Queues...) {
				found := f.Queues[i]
				assert.Equal(t, []any{q.Name, "vh", true, false}, []any{found.Name, found.Vhost, found.Durable,
					found.AutoDelete})
				require.Len(t, found.Arguments, len(q.Arguments))
				for key, value := range q.Arguments {
					assert.EqualValues(t, value, found.Arguments[key], key)
				}
			}

			require.Len(t, f.Bindings, 1+len(plan.Bindings))
			for i, b := range append([]topology.Binding{{Exchange: "events", Queue: "orders", Key: "a.*"}},
				plan.Bindings...) {
				found := f.Bindings[i]
				assert.Equal(t, []any{b.Exchange, b.Queue, b.Key, "vh", "queue"},
					[]any{found.Source, found.Destination, found.RoutingKey, found.Vhost, found.DestinationType})
				require.NotNil(t, found.Arguments)
				assert.Len(t, found.Arguments, len(b.Arguments))
				for key, value := range b.Arguments {
					assert.Equal(t, value, found.Arguments[key])
				}
			}
		})
	}
}

// What main queues share comes once, also with different delays.
func TestDefinitionsShareOnce(t *testing.T) {
	shared := config.Policy{Delays: []time.Duration{time.Second}, Strategy: config.StrategyShared}
	more := config.Policy{Delays: []time.Duration{time.Second, time.Minute}, Strategy: config.StrategyShared}
	fanout := []topology.Exchange{{Name: "events", Type: "fanout", Durable: true}}
	file, err := topology.Definitions("/",
		topology.MainQueue{Plan: mustPlan(t, "a", shared), Exchanges: fanout,
			Bindings: []topology.Binding{{Exchange: "events", Queue: "a"}}},
		topology.MainQueue{Plan: mustPlan(t, "b", more), Exchanges: fanout,
			Bindings: []topology.Binding{{Exchange: "events", Queue: "b"}}},
		topology.MainQueue{Plan: mustPlan(t, "a", shared), Exchanges: fanout,
			Bindings: []topology.Binding{{Exchange: "events", Queue: "a"}}},
	)
	require.NoError(t, err)
	f := readDefinitions(t, file)

	var exchanges, queues []string
	for _, x := range f.Exchanges {
		exchanges = append(exchanges, x.Name)
	}
	for _, q := range f.Queues {
		queues = append(queues, q.Name)
	}
	assert.Equal(t, []string{"events", "retry", "retry.return"}, exchanges)
	assert.Equal(t, []string{"a", "retry.1s", "a.dlq", "b", "retry.1m", "b.dlq"}, queues)
	bindings := map[string]int{}
	for _, b := range f.Bindings {
		bindings[b.Source+" "+b.RoutingKey+" "+b.Destination]++
	}
	assert.Equal(t, map[string]int{
		"events  a": 1, "events  b": 1, "retry  retry.1s": 1, "retry  retry.1m": 1, "retry.return a a": 1,
		"retry.return b b": 1,
	}, bindings)
}

// The broker reads the values from JSON as it would from AMQP: integers of any width, floats that
// stay floats.
func TestDefinitionsValues(t *testing.T) {
	file, err := topology.Definitions("/", topology.MainQueue{
		Plan: mustPlan(t, "q", config.Policy{Mode: config.ModeOff}),
		Arguments: amqp.Table{
			"int": 5, "int8": int8(-5), "uint16": uint16(5), "int64": int64(315_360_000_000),
			"max":   int64(math.MaxInt64),
			"float": 5.0, "small": 1.5e-7, "float32": float32(0.5), "text": `<"ü">`, "bool": true,
			"list": []any{int32(1), "a", []any{}}, "table": amqp.Table{"n": int64(1)},
		},
	})
	require.NoError(t, err)
	for _, line := range []string{
		`"int": 5,`, `"int8": -5,`, `"uint16": 5`, `"int64": 315360000000,`, `"max": 9223372036854775807,`,
		`"float": 5.0e+00,`, `"small": 1.5e-07,`, `"float32": 5.0e-01,`, `"text": "<\"ü\">",`, `"bool": true,`,
		`"n": 1`,
	} {
		assert.Contains(t, string(file), line)
	}
	readDefinitions(t, file)
}

// Everything that is wrong is told at once.
func TestDefinitionsRefuse(t *testing.T) {
	file, err := topology.Definitions("\xff",
		topology.MainQueue{
			Plan: mustPlan(t, "a", config.Policy{}),
			Arguments: amqp.Table{"x-time": time.Now(), "x-list": []any{1, amqp.Decimal{}},
				"x-table": amqp.Table{"nan": math.NaN()}},
			Exchanges: []topology.Exchange{{Name: "typeless"}, {Name: "twice", Type: "fanout"},
				{Name: "a.retry", Type: "headers", Durable: true}},
		},
		topology.MainQueue{
			Plan:      mustPlan(t, "a.dlq", config.Policy{}),
			Arguments: amqp.Table{"x-void": nil},
			Exchanges: []topology.Exchange{{Name: "twice", Type: "direct"}},
			Bindings: []topology.Binding{{Exchange: "twice", Queue: "a.dlq", Key: strings.Repeat("k", 256),
				Arguments: amqp.Table{"bytes": []byte("b")}}},
		},
	)
	require.Error(t, err)
	assert.Nil(t, file)
	for _, part := range []string{
		`virtual host: cannot be written`,
		`queue "a".arguments["x-time"]: cannot be written`, `queue "a".arguments["x-list"][1]`,
		`queue "a".arguments["x-table"]["nan"]`,
		`exchange "typeless": has no type`, `exchange "twice": is defined in two ways`,
		`retry exchange "a.retry": is the exchange that publishers of queue "a" publish to`,
		`queue "a.dlq".arguments["x-void"]`, `belongs to the topology of queue "a.dlq"`,
		`binding of queue "a.dlq" to exchange "twice".routing_key`, `.arguments["bytes"]`,
	} {
		assert.ErrorContains(t, err, part)
	}
	var field *config.FieldError
	require.ErrorAs(t, err, &field)
	var name *topology.NameError
	require.ErrorAs(t, err, &name)
}

// The broker's own exchanges are bound to, and not defined: an import skips them.
func TestDefinitionsLeaveTheBrokersExchanges(t *testing.T) {
	file, err := topology.Definitions("/", topology.MainQueue{
		Plan:      mustPlan(t, "a", config.Policy{Mode: config.ModeOff}),
		Exchanges: []topology.Exchange{{Name: "amq.topic", Type: "topic", Durable: true}},
		Bindings:  []topology.Binding{{Exchange: "amq.topic", Queue: "a", Key: "#"}},
	})
	require.NoError(t, err)
	f := readDefinitions(t, file)
	assert.Empty(t, f.Exchanges)
	require.Len(t, f.Bindings, 1)
	assert.Equal(t, "amq.topic", f.Bindings[0].Source)
	assert.NotContains(t, string(file), "null", "an empty list is one, for the broker's sake")
}

// A main queue without what a cycle needs would lose what is rejected.
func TestDefinitionsUnderStrategies(t *testing.T) {
	plan := strategyPlan(t, cycle(), topology.Names{})
	file, err := topology.Definitions("vh", topology.MainQueue{Plan: plan, Arguments: plan.WithMainArguments(nil)})
	require.NoError(t, err)
	f := readDefinitions(t, file)
	assert.Equal(t, "orders.rejected.30s", f.Queues[0].Arguments["x-dead-letter-exchange"])
	reasons := map[string]string{}
	for _, b := range f.Bindings {
		if b.Source == "orders.rejected.30s" {
			assert.Equal(t, "all-with-x", b.Arguments["x-match"])
			reasons[b.Arguments["x-first-death-reason"].(string)] = b.Destination
		}
	}
	assert.Equal(t, map[string]string{"rejected": "orders.retry.30s", "expired": "orders.dlq", "maxlen": "orders.dlq",
		"delivery_limit": "orders.dlq"}, reasons)

	arguments := plan.WithMainArguments(amqp.Table{"x-message-ttl": 5})
	delete(arguments, "x-dead-letter-exchange")
	arguments["x-overflow"] = "drop-head"
	_, err = topology.Definitions("vh", topology.MainQueue{Plan: plan, Arguments: arguments})
	assert.ErrorContains(t, err, `queue "orders".arguments["x-dead-letter-exchange"]: not as the strategy `+
		`cycle needs it: must be "orders.rejected.30s", as Plan.WithMainArguments adds it, got <nil>`)
	assert.ErrorContains(t, err, `["x-overflow"]: not as the strategy`)
	assert.ErrorContains(t, err, `["x-message-ttl"]: not possible with the strategy cycle`)

	redelivery := strategyPlan(t, config.Policy{Strategy: config.StrategyRedelivery}, topology.Names{})
	_, err = topology.Definitions("vh", topology.MainQueue{Plan: redelivery,
		Arguments: amqp.Table{"x-queue-type": "quorum"}})
	require.NoError(t, err, "a policy of the broker may do it")
}
