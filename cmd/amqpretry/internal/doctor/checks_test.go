package doctor

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

func ptr[T any](v T) *T { return &v }

// healthy are the facts of a broker on which nothing is wrong, with a quorum main queue "orders"
// and one retry queue.
func healthy(t *testing.T) Facts {
	return healthyUnder(t, config.Policy{Delays: []time.Duration{time.Minute}})
}

func healthyUnder(t *testing.T, policy config.Policy) Facts {
	t.Helper()
	plan, err := topology.New("orders", policy, topology.Names{})
	require.NoError(t, err)
	f := Facts{Commands: commands("/", false, false), Facts: inspect.Facts{
		VHost: "/", User: "service", Version: "4.0.5", PolicyFile: "retry.yaml",
		Topics:  []inspect.Topic{{Name: "orders", Policy: policy, Plan: plan}},
		Blocked: inspect.Known(""),
		Refused: inspect.Known[[]inspect.Permission](nil),
		Granted: inspect.Known(httpapi.Permissions{User: "service", VHost: "/", Configure: ".*", Write: ".*",
			Read: ".*"}),
		Nodes: inspect.Known([]httpapi.Node{{Name: "a", Running: true, MemoryAlarm: ptr(false),
			DiskAlarm: ptr(false)}}),
		Flags: inspect.Known([]httpapi.FeatureFlag{{Name: "quorum_queue", State: "enabled"},
			{Name: "stream_queue", State: "enabled"}}),
		Limits:           inspect.Known(map[string]int64{}),
		Policies:         inspect.Known[[]httpapi.Policy](nil),
		OperatorPolicies: inspect.Known[[]httpapi.Policy](nil),
		Obsolete:         inspect.Known(retire.Found{}),
		Queues:           map[string]inspect.Queue{}, Exchanges: map[string]inspect.Exchange{},
	}}
	put := func(name string, arguments amqp.Table) {
		q := httpapi.Queue{Name: name, VHost: "/", Type: arguments[amqp.QueueTypeArg].(string), State: "running",
			Arguments: httpapi.Arguments(arguments),
			Members:   []string{"a"}, Online: []string{"a"}, Messages: ptr[int64](0), Ready: ptr[int64](0),
			Unacked: ptr[int64](0), Undeliverable: ptr[int64](0),
			Consumers: ptr[int64](0), Effective: httpapi.Arguments{}}
		f.Queues[name] = inspect.Queue{Exists: inspect.Known(true),
			Conflict: inspect.Known[*topology.ConflictError](nil), Details: inspect.Known(q)}
		f.All = inspect.Known(append(f.All.Value, q))
	}
	put("orders", plan.WithMainArguments(topology.ProtectArguments("orders.dlq")))
	for _, q := range plan.Queues {
		put(q.Name, maps.Clone(q.Arguments))
	}
	if policy.Mode == config.ModeOff { // where another policy was before
		put("orders.dlq", amqp.Table{"x-queue-type": "quorum"})
	}
	exchanges, bindings := plan.Exchanges, plan.Bindings
	if plan.Ladder != nil {
		shared := plan.Ladder.Shared()
		for _, q := range shared.Queues {
			put(q.Name, maps.Clone(q.Arguments))
		}
		exchanges, bindings = slices.Concat(exchanges, shared.Exchanges), slices.Concat(bindings, shared.Bindings)
	}
	for _, x := range exchanges {
		found := inspect.Exchange{Exists: inspect.Known(true), Conflict: inspect.Known[*topology.ConflictError](nil),
			Type:     x.Type,
			Bindings: inspect.Known[[]httpapi.Binding](nil)}
		for _, b := range bindings {
			if b.Exchange == x.Name {
				found.Bindings.Value = append(found.Bindings.Value,
					httpapi.Binding{VHost: "/", Exchange: b.Exchange, Queue: b.Queue, ToExchange: b.ToExchange,
						Key: b.Key, Arguments: httpapi.Arguments(b.Arguments)})
			}
		}
		f.Exchanges[x.Name] = found
	}
	return f
}

// change changes what is known of a queue.
func (f Facts) change(queue string, how func(*inspect.Queue, *httpapi.Queue)) {
	q := f.Queues[queue]
	q.Details.Value.Arguments = maps.Clone(q.Details.Value.Arguments)
	how(&q, &q.Details.Value)
	f.Queues[queue] = q
}

func TestNothingIsFoundWhereNothingIsWrong(t *testing.T) {
	for _, policy := range []config.Policy{{}, {Strategy: config.StrategyShared}, {Mode: config.ModeDeadLetter},
		{Mode: config.ModeOff}, {Strategy: config.StrategyLadder}} {
		for _, version := range []string{"3.10.8", "4.0.5", "4.3.6"} {
			f := healthyUnder(t, policy)
			f.Version = version
			told := map[string]bool{}
			for _, finding := range diagnose(f) {
				told[finding.Check] = true
				if finding.Check == "nack-rule" || finding.Check == "confirm-timeout" && policy.Mode == "" {
					assert.Equal(t, Note, finding.Severity)
					continue
				}
				assert.Equal(t, OK, finding.Severity, "%+v", finding)
			}
			assert.Len(t, told, len(checks), "each check tells something")
		}
	}
}

func TestNothingIsFoundWhereStrategiesHaveWhatTheyNeed(t *testing.T) {
	one := []time.Duration{10 * time.Second}
	for _, policy := range []config.Policy{{Strategy: config.StrategyCycle, Delays: one},
		{Strategy: config.StrategyRedelivery},
		{Strategy: config.StrategyNative, Delays: one},
		{Strategy: config.StrategyNative, Delays: one, Protect: config.ProtectionPolicy}} {
		for _, version := range []string{"3.10.8", "4.3.6"} {
			f := healthyUnder(t, policy)
			f.Version = version
			for _, finding := range diagnose(f) {
				switch {
				case finding.Check == "nack-rule" || finding.Check == "confirm-timeout":
				case policy.Strategy == config.StrategyNative && version == "3.10.8" && finding.Check == "strategy":
					assert.Equal(t, Problem, finding.Severity)
					assert.Equal(t, "its strategy native needs RabbitMQ 4.3 or later, found 3.10.8", finding.Found)
				default:
					assert.Equal(t, OK, finding.Severity, "%s %s %+v", policy.Strategy, version, finding)
				}
			}
		}
	}
}

func TestNothingCouldBeSeen(t *testing.T) {
	anyway := []string{"confirm-timeout"} // which is never seen
	t.Run("tiers", func(t *testing.T) {   // without landing queues and a ladder
		nothingCouldBeSeen(t, healthy(t), append(anyway, "landing", "unroutable")...)
	})
	t.Run("exact", func(t *testing.T) {
		nothingCouldBeSeen(t, healthyUnder(t, config.Policy{Strategy: config.StrategyLadder}), anyway...)
	})
}

func nothingCouldBeSeen(t *testing.T, f Facts, anyway ...string) {
	t.Helper()
	blindFacts := Facts{Commands: f.Commands, Facts: inspect.Facts{Topics: f.Topics, VHost: "/", User: "service",
		PolicyFile: "retry.yaml"}}
	const why = "nobody told"
	blindFacts.Blocked, blindFacts.Refused, blindFacts.Granted = inspect.Unseen[string](why),
		inspect.Unseen[[]inspect.Permission](why),
		inspect.Unseen[httpapi.Permissions](why)
	blindFacts.Nodes, blindFacts.Flags = inspect.Unseen[[]httpapi.Node](why), inspect.Unseen[[]httpapi.FeatureFlag](why)
	blindFacts.Limits, blindFacts.All, blindFacts.Obsolete = inspect.Unseen[map[string]int64](why),
		inspect.Unseen[[]httpapi.Queue](why), inspect.Unseen[retire.Found](why)
	blindFacts.Queues, blindFacts.Exchanges = map[string]inspect.Queue{}, map[string]inspect.Exchange{}
	for name := range f.Queues {
		blindFacts.Queues[name] = inspect.Queue{Exists: inspect.Unseen[bool](why),
			Conflict: inspect.Unseen[*topology.ConflictError](why),
			Details:  inspect.Unseen[httpapi.Queue](why)}
	}
	for name := range f.Exchanges {
		blindFacts.Exchanges[name] = inspect.Exchange{Exists: inspect.Unseen[bool](why),
			Conflict: inspect.Unseen[*topology.ConflictError](why),
			Bindings: inspect.Unseen[[]httpapi.Binding](why)}
	}
	unseenOnes := map[string]bool{}
	for _, finding := range diagnose(blindFacts) {
		if finding.Severity == Unseen {
			unseenOnes[finding.Check] = true
		} else {
			assert.Contains(t, anyway, finding.Check, "%+v", finding)
		}
	}
	assert.Len(t, unseenOnes, len(checks)-len(anyway))
}

// Each check: what it finds, and about what. TestNothingIsFoundWhereNothingIsWrong and
// TestNothingCouldBeSeen are the other two.
func TestChecks(t *testing.T) {
	policy := func(name string, priority int, definition httpapi.Arguments) httpapi.Policy {
		return httpapi.Policy{VHost: "/", Name: name, Priority: priority, Definition: definition}
	}
	under := func(f *Facts, queue string, operator bool, definition httpapi.Arguments) {
		p := policy("p", 3, definition)
		f.change(queue, func(_ *inspect.Queue, q *httpapi.Queue) {
			q.Effective = definition
			if operator {
				q.OperatorPolicy = &p.Name
			} else {
				q.Policy = &p.Name
			}
		})
		if operator {
			f.OperatorPolicies = inspect.Known([]httpapi.Policy{p})
		} else {
			f.Policies = inspect.Known([]httpapi.Policy{p})
		}
	}
	const retry, dlq = "orders.retry.1m", "orders.dlq"
	fanout := func(f *Facts) inspect.Exchange {
		x := f.Exchanges["orders.retry"]
		x.Conflict = inspect.Known(&topology.ConflictError{Argument: "type", Wanted: "headers", Found: "fanout"})
		f.Exchanges["orders.retry"] = x
		return x
	}
	for _, test := range []struct {
		name     string
		check    string
		severity Severity
		object   string
		found    string // a part
		fix      string // a part
		make     func(*Facts)
	}{
		{"too old", "version", Problem, "broker", "RabbitMQ 3.9.29, wanted 3.10", "upgrade", func(f *Facts) {
			f.Version = "3.9.29"
		}},
		{"feature", "features", Problem, "broker", "stream_queue is disabled", "rabbitmqctl enable_feature_flag " +
			"stream_queue", func(f *Facts) {
			f.Version = "3.10.8"
			f.Flags.Value[1].State = "disabled"
		}},
		{"memory", "alarms", Problem, "broker", "memory alarm on node a", "rabbitmqctl --node 'a' " +
			"set_vm_memory_high_watermark", func(f *Facts) { f.Nodes.Value[0].MemoryAlarm = ptr(true) }},
		{"disk", "alarms", Problem, "broker", "disk alarm on node a", "rabbitmqctl --node 'a' set_disk_free_limit",
			func(f *Facts) { f.Nodes.Value[0].DiskAlarm = ptr(true) }},
		{"blocked", "alarms", Problem, "broker", "low on memory", "rabbitmq-diagnostics alarms", func(f *Facts) {
			f.Nodes, f.Blocked = inspect.Unseen[[]httpapi.Node]("x"), inspect.Known("low on memory")
		}},
		{"down", "nodes", Warning, "broker", "node b is down", "", func(f *Facts) {
			f.Nodes.Value = append(f.Nodes.Value, httpapi.Node{Name: "b"})
		}},
		{"apart", "nodes", Problem, "broker", "node a is partitioned from b", "", func(f *Facts) {
			f.Nodes.Value[0].Partitions = []string{"b"}
		}},
		{"room", "limits", Problem, "broker", "is limited to 2 queues; it has 2, and 1 are missing",
			`rabbitmqctl set_vhost_limits -p '/' '{"max-connections":5,"max-queues":3}'`, func(f *Facts) {
				f.Limits.Value = map[string]int64{"max-queues": 2, "max-connections": 5}
				f.All.Value = f.All.Value[:2]
				f.Queues[dlq] = inspect.Queue{Exists: inspect.Known(false)}
			}},
		{"refused", "permissions", Problem, `user "service"`, `no read permission on queue "orders"`, "",
			func(f *Facts) {
				f.Refused = inspect.Known([]inspect.Permission{{Operation: inspect.Read, Kind: "queue",
					Name: "orders", For: "x",
					Always: true}})
			}},
		{"not granted", "permissions", Warning, `user "service"`, `no configure permission on queue "orders"`,
			"'(^mine$)|^(orders|orders\\.retry|", func(f *Facts) {
				f.Granted.Value.Configure, f.Refused = "^mine$", inspect.Unseen[[]inspect.Permission]("x")
			}},
		{"cannot bind", "permissions", Warning, `user "service"`, `no read permission on exchange "orders.retry"`,
			"'(^orders$)|^(", func(f *Facts) { f.Granted.Value.Read = "^orders$" }},
		{"granted nothing", "permissions", Problem, `user "service"`, `no write permission on exchange "orders.retry"`,
			"list_user_permissions", func(f *Facts) {
				f.Granted = inspect.Unseen[httpapi.Permissions]("x")
				f.Refused = inspect.Known(inspect.Needs(f.Topics))
			}},

		{"main is gone", "exists", Problem, `main queue "orders"`, "no such queue", "start the service",
			func(f *Facts) { f.Queues["orders"] = inspect.Queue{Exists: inspect.Known(false)} }},
		{"retry is gone", "exists", Problem, `retry queue "orders.retry.1m"`, "no such queue", "amqpretry topology " +
			"apply --policies 'retry.yaml' 'orders'",
			func(f *Facts) { f.Queues[retry] = inspect.Queue{Exists: inspect.Known(false)} }},
		{"without a policy file", "exists", Problem, `dead-letter queue "orders.dlq"`, "no such queue",
			"# Start the service that consumes \"orders\": it declares what is missing. Or write its policies to a " +
				"file (policyfile.Format),\n# and run:\n#   amqpretry topology apply --policies FILE 'orders'",
			func(f *Facts) {
				f.PolicyFile = ""
				f.Queues[dlq] = inspect.Queue{Exists: inspect.Known(false)}
			}},
		{"under the default policy", "exists", Problem, `dead-letter queue "orders.dlq"`, "no such queue",
			"amqpretry topology apply 'orders'", func(f *Facts) {
				*f = healthyUnder(t, config.Policy{})
				f.PolicyFile = ""
				f.Queues[dlq] = inspect.Queue{Exists: inspect.Known(false)}
			}},
		{"exchange is gone", "exists", Problem, `exchange "orders.retry"`, "no such exchange", "topology apply",
			func(f *Facts) { f.Exchanges["orders.retry"] = inspect.Exchange{Exists: inspect.Known(false)} }},
		{"another TTL", "arguments", Problem, `retry queue "orders.retry.1m"`, "x-message-ttl, wanted 60000, found 1",
			"amqpretry topology apply --recreate --policies 'retry.yaml' 'orders'", func(f *Facts) {
				f.change(retry, func(q *inspect.Queue, _ *httpapi.Queue) {
					q.Conflict.Value = &topology.ConflictError{Argument: "x-message-ttl", Wanted: "60000", Found: "1"}
				})
			}},
		{"another dead-letter queue", "arguments", Problem, `dead-letter queue "orders.dlq"`, "x-queue-type, wanted " +
			"quorum, found classic", "amqpretry dlq purge --all --yes --undo dead-letters-orders.jsonl 'orders' " +
			"&&\nrabbitmqctl list_queues -p '/' name messages\n# If it has 0 messages, delete it, declare it as " +
			"planned, and put the messages back:\n#   rabbitmqctl delete_queue -p '/' 'orders.dlq'\n#   amqpretry " +
			"topology apply --policies 'retry.yaml' 'orders'\n#   amqpretry dlq import 'orders' " +
			"dead-letters-orders.jsonl",
			func(f *Facts) {
				f.change(dlq, func(q *inspect.Queue, _ *httpapi.Queue) {
					q.Conflict.Value = &topology.ConflictError{Argument: "x-queue-type", Wanted: "quorum",
						Found: "classic"}
				})
			}},
		{"dead letters pushed out by an argument", "arguments", Problem, `dead-letter queue "orders.dlq"`,
			"x-max-length, wanted another value, found 5", "amqpretry dlq purge", func(f *Facts) {
				f.change(dlq, func(q *inspect.Queue, d *httpapi.Queue) {
					q.Conflict.Value = &topology.ConflictError{Argument: "x-max-length", Found: "5"}
					d.Arguments["x-max-length"] = int64(5)
				})
				finding, _ := find(diagnose(*f), "arguments", dlq, "")
				assert.Contains(t, finding.Means, "a full queue deletes its oldest dead letters")
			}},
		{"another exchange", "arguments", Problem, `exchange "orders.retry"`, "type, wanted headers, found fanout",
			"\nrabbitmqctl eval 'ok = rabbit_exchange:delete(rabbit_misc:r(<<\"/\"/utf8>>, exchange, " +
				"<<\"orders.retry\"/utf8>>), false, <<\"amqpretry\">>).' &&\namqpretry topology apply --policies " +
				"'retry.yaml' 'orders'", func(f *Facts) { fanout(f) }},
		{"another exchange, which others use", "arguments", Problem, `exchange "orders.retry"`, "found fanout",
			"list_bindings -p '/' source_name destination_name routing_key\n# Note those of others, which are lost. " +
				"Then delete the exchange, and declare it as planned:\n#   rabbitmqctl eval 'ok", func(f *Facts) {
				x := fanout(f)
				x.Bindings = inspect.Known([]httpapi.Binding{{VHost: "/", Exchange: "orders.retry", Queue: "audit"}})
				f.Exchanges["orders.retry"] = x
			}},
		{"unbound", "bindings", Problem, `exchange "orders.retry"`, `not bound to queue "orders.dlq"`, "topology apply",
			func(f *Facts) {
				x := f.Exchanges["orders.retry"]
				x.Bindings.Value = x.Bindings.Value[:1]
				f.Exchanges["orders.retry"] = x
			}},
		{"bound otherwise", "bindings", Problem, `exchange "orders.retry"`, `not bound to queue "orders.retry.1m"`,
			"topology apply", func(f *Facts) {
				f.Exchanges["orders.retry"].Bindings.Value[0].Arguments = httpapi.Arguments{"x-match": "any",
					"amqpretry-delay": "1m"}
			}},
		{"bound to less", "bindings", Problem, `exchange "orders.retry"`, `not bound to queue "orders.retry.1m"`,
			"topology apply", func(f *Facts) {
				f.Exchanges["orders.retry"].Bindings.Value[0].Arguments = httpapi.Arguments{"x-match": "all",
					"amqpretry-delay": "1m", "colour": "red"}
			}},

		{"queue is down", "available", Problem, `main queue "orders"`, "it is down", "", func(f *Facts) {
			f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) { q.State = "down" })
		}},
		{"no majority", "available", Problem, `dead-letter queue "orders.dlq"`, "1 of its 3 nodes",
			"rabbitmq-queues quorum_status --vhost '/' 'orders.dlq'", func(f *Facts) {
				f.change(dlq, func(_ *inspect.Queue, q *httpapi.Queue) { q.Members = []string{"a", "b", "c"} })
			}},
		{"one of three", "available", Warning, `main queue "orders"`, "on 1 of 3 nodes", "rabbitmq-queues add_member " +
			"--vhost '/' 'orders' 'b'", func(f *Facts) {
			f.Nodes.Value = append(f.Nodes.Value, httpapi.Node{Name: "b", Running: true},
				httpapi.Node{Name: "c", Running: true})
		}},
		{"classic main", "types", Note, `main queue "orders"`, "classic", "", func(f *Facts) {
			f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) { q.Type = "classic" })
		}},
		{"makes room", "overflow", Warning, `main queue "orders"`, "x-max-length: 9, and overflow: drop-head",
			`'{"max-priority":3,"overflow":"reject-publish"}'`, func(f *Facts) {
				f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
					q.Arguments["x-max-length"] = int64(9)
					delete(q.Arguments, "x-overflow")
				})
				under(f, "orders", false, httpapi.Arguments{"max-priority": int64(3)})
			}},
		{"stream", "types", Problem, `main queue "orders"`, "a stream", "consume from a queue", func(f *Facts) {
			f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) { q.Type = "stream" })
		}},
		{"classic retry", "types", Warning, `retry queue "orders.retry.1m"`, "classic queue in front of a quorum",
			"take classic_queues: true out", func(f *Facts) {
				f.change(retry, func(_ *inspect.Queue, q *httpapi.Queue) { q.Type = "classic" })
			}},

		{"operator's TTL", "policies", Problem, `retry queue "orders.retry.1m"`,
			`message-ttl: 5, from the operator policy "p"`,
			`so it gets a limit that no queue reaches:` + "\n" + `rabbitmqctl set_operator_policy -p '/' --priority 4 --apply-to queues 'amqpretry.orders.retry.1m' '^orders\.retry\.1m$' '{"max-length-bytes":1000000000000000}'`,
			func(f *Facts) { under(f, retry, true, httpapi.Arguments{"message-ttl": int64(5)}) }},
		{"drop-head", "policies", Problem, `retry queue "orders.retry.1m"`, `overflow: drop-head, from the policy "p"`,
			`rabbitmqctl set_policy -p '/' --priority 4`,
			func(f *Facts) { under(f, retry, false, httpapi.Arguments{"overflow": "drop-head"}) }},
		{"both keys go", "policies", Problem, `retry queue "orders.retry.1m"`, "expires", `'{"consumer-timeout":9}'`,
			func(f *Facts) {
				under(f, retry, false, httpapi.Arguments{"overflow": "drop-head", "expires": int64(7),
					"consumer-timeout": int64(9)})
			}},
		{"full", "policies", Warning, `retry queue "orders.retry.1m"`, "max-length: 9", "set_policy", func(f *Facts) {
			under(f, retry, false, httpapi.Arguments{"max-length": int64(9)})
		}},
		{"full and early", "policies", Problem, `retry queue "orders.retry.1m"`, "max-length: 9", "set_policy",
			func(f *Facts) {
				under(f, retry, false, httpapi.Arguments{"max-length": int64(9), "overflow": "drop-head"})
			}},
		{"nobody's policy", "policies", Problem, `retry queue "orders.retry.1m"`, "expires: 7, from the policies of " +
			"the broker", "rabbitmqctl list_policies -p '/'", func(f *Facts) {
			under(f, retry, false, httpapi.Arguments{"expires": int64(7)})
			f.Policies = inspect.Unseen[[]httpapi.Policy]("x")
		}},
		{"dead letters expire", "policies", Problem, `dead-letter queue "orders.dlq"`, "message-ttl: 5", "set_policy",
			func(f *Facts) { under(f, dlq, false, httpapi.Arguments{"message-ttl": int64(5)}) }},
		{"dead letters pushed out", "policies", Problem, `dead-letter queue "orders.dlq"`, "max-length-bytes: 5",
			"set_policy", func(f *Facts) { under(f, dlq, false, httpapi.Arguments{"max-length-bytes": int64(5)}) }},
		{"looking kills", "policies", Problem, `dead-letter queue "orders.dlq"`, "delivery-limit: 5", "set_policy",
			func(f *Facts) { under(f, dlq, false, httpapi.Arguments{"delivery-limit": int64(5)}) }},
		{"looking returns early", "policies", Problem, `retry queue "orders.retry.1m"`, "delivery-limit: 5", "set_policy",
			func(f *Facts) { under(f, retry, false, httpapi.Arguments{"delivery-limit": int64(5)}) }},
		{"main expires", "policies", Problem, `main queue "orders"`, "expires: 5", "set_policy", func(f *Facts) {
			under(f, "orders", false, httpapi.Arguments{"expires": int64(5)})
		}},
		{"main's TTL", "policies", Warning, `main queue "orders"`, "message-ttl: 5", "set_policy", func(f *Facts) {
			under(f, "orders", false, httpapi.Arguments{"message-ttl": int64(5)})
		}},
		{"main at most once", "policies", Problem, `main queue "orders"`, "overflow: drop-head", "set_policy",
			func(f *Facts) { under(f, "orders", false, httpapi.Arguments{"overflow": "drop-head"}) }},
		{"main refuses", "policies", Note, `main queue "orders"`, "max-length: 5", "", func(f *Facts) {
			under(f, "orders", false, httpapi.Arguments{"max-length": int64(5)})
		}},

		{"drops at 20", "delivery-limit", Problem, `main queue "orders"`, "delivery limit 20, the default",
			"set_policy -p '/' --priority 100", func(f *Facts) {
				f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
					q.Arguments = httpapi.Arguments{"x-queue-type": "quorum"}
				})
			}},
		{"drops at its policy's", "delivery-limit", Problem, `main queue "orders"`, "delivery limit 4",
			`--priority 100 --apply-to queues 'amqpretry.orders' '^orders$' '{"dead-letter-exchange":"","dead-letter-routing-key":"orders.dlq","dead-letter-strategy":"at-least-once","delivery-limit":1000,"max-priority":3`, func(f *Facts) {
				f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
					q.Arguments = httpapi.Arguments{"x-queue-type": "quorum", "x-delivery-limit": int64(9)}
				})
				under(f, "orders", false, httpapi.Arguments{"delivery-limit": int64(4), "max-priority": int64(3)})
			}},
		{"drops with no queue behind", "delivery-limit", Problem, `main queue "orders"`, "delivery limit 20",
			"amqpretry topology apply --policies 'retry.yaml' 'orders' &&\nrabbitmqctl set_policy", func(f *Facts) {
				f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) { q.Arguments = httpapi.Arguments{} })
				f.Queues[dlq] = inspect.Queue{Exists: inspect.Known(false)}
			}},
		{"exchange is not there", "dead-letter-target", Problem, `main queue "orders"`, `"nowhere" does not exist`,
			"amqpretry topology apply --dead-letter-targets --policies 'retry.yaml' 'orders'", func(f *Facts) {
				f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
					q.Arguments["x-dead-letter-exchange"] = "nowhere"
				})
				f.Exchanges["nowhere"] = inspect.Exchange{Exists: inspect.Known(false)}
			}},
		{"queue is not there", "dead-letter-target", Problem, `main queue "orders"`,
			`queue "elsewhere", which does not exist`, "amqpretry topology apply --dead-letter-targets --policies " +
				"'retry.yaml' 'orders'", func(f *Facts) {
				f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
					q.Arguments["x-dead-letter-routing-key"] = "elsewhere"
				})
			}},
		{"no dead-letter queue under off", "dead-letter-target", Problem, `main queue "orders"`,
			`queue "orders.dlq", which does not exist`, "amqpretry topology apply --dead-letter-targets --policies " +
				"'retry.yaml' 'orders'", func(f *Facts) {
				f.Topics[0].Plan, f.Topics[0].Policy = topology.Plan{Queue: "orders"},
					config.Policy{Mode: config.ModeOff}
				f.Queues[dlq] = inspect.Queue{Exists: inspect.Known(false)}
			}},
		{"cycle", "dead-letter-target", Problem, `main queue "orders"`,
			`"orders.retry.1m", which has a TTL and dead-letters back`, "An argument of the queue", func(f *Facts) {
				f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
					q.Arguments["x-dead-letter-routing-key"] = retry
				})
			}},
		{"stuck", "stuck", Warning, `retry queue "orders.retry.1m"`, "3 messages due", "list_queues", func(f *Facts) {
			f.change(retry, func(_ *inspect.Queue, q *httpapi.Queue) { q.Undeliverable = ptr[int64](3) })
		}},
		{"stuck behind a limit that is gone", "stuck", Warning, `retry queue "orders.retry.1m"`, "although it has room",
			`"max-length":1000000000,"max-priority":3,"overflow":"reject-publish"}'`, func(f *Facts) {
				f.Version = "3.10.8"
				f.change(retry, func(_ *inspect.Queue, q *httpapi.Queue) { q.Undeliverable = ptr[int64](3) })
				under(f, "orders", false, httpapi.Arguments{"max-priority": int64(3)})
			}},
		{"stuck behind one that is not", "stuck", Warning, `retry queue "orders.retry.1m"`, "is full", "raise its limit",
			func(f *Facts) {
				f.Version = "3.10.8"
				f.change(retry, func(_ *inspect.Queue, q *httpapi.Queue) { q.Undeliverable = ptr[int64](3) })
				f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) { q.Messages = ptr[int64](5) })
				under(f, "orders", false, httpapi.Arguments{"max-length": int64(5), "overflow": "reject-publish"})
			}},
		{"stuck for good", "stuck", Problem, `retry queue "orders.retry.1m"`, `the main queue "orders" does not exist`,
			"start the service", func(f *Facts) {
				f.change(retry, func(_ *inspect.Queue, q *httpapi.Queue) { q.Undeliverable = ptr[int64](3) })
				f.Queues["orders"] = inspect.Queue{Exists: inspect.Known(false)}
			}},
		{"stuck and stopped", "stuck", Problem, `retry queue "orders.retry.1m"`, "32 messages due", "", func(f *Facts) {
			f.change(retry, func(_ *inspect.Queue, q *httpapi.Queue) {
				q.Undeliverable, q.Messages = nil,
					ptr[int64](32)
			})
		}},
		{"thief", "retry-consumers", Problem, `retry queue "orders.retry.1m"`, "2 consumers", "list_consumers -p '/'",
			func(f *Facts) { f.change(retry, func(q *inspect.Queue, _ *httpapi.Queue) { q.Consumers = 2 }) }},
		{"single", "single-active-consumer", Note, `main queue "orders"`, "single active", "", func(f *Facts) {
			f.change("orders", func(_ *inspect.Queue,
				q *httpapi.Queue) {
				q.Arguments["x-single-active-consumer"] = true
			})
		}},
		{"dead letters that AMQP would not count", "dead-letters", Unseen, "broker", "orders.dlq", "", func(f *Facts) {
			f.Version = "4.4.0"
			f.change(dlq, func(q *inspect.Queue,
				_ *httpapi.Queue) {
				q.Details = inspect.Unseen[httpapi.Queue]("no API")
			})
		}},
		{"dead letters", "dead-letters", Warning, `dead-letter queue "orders.dlq"`, "7 messages",
			"amqpretry dlq stat 'orders'", func(f *Facts) {
				f.change(dlq, func(q *inspect.Queue, _ *httpapi.Queue) { q.Ready = 7 })
			}},
		{"dead letters are consumed", "dead-letters", Note, `dead-letter queue "orders.dlq"`, "2 consumers", "",
			func(f *Facts) { f.change(dlq, func(q *inspect.Queue, _ *httpapi.Queue) { q.Consumers = 2 }) }},
		{"obsolete", "obsolete", Note, `retry queue "orders.retry.2m"`, "no policy uses it", "amqpretry topology prune",
			func(f *Facts) {
				f.Obsolete.Value.Queues = []retire.Queue{{Queue: topology.Queue{Name: "orders.retry.2m",
					Arguments: amqp.Table{"x-dead-letter-routing-key": "orders"}}}}
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := healthy(t)
			test.make(&f)
			for _, finding := range diagnose(f) {
				if finding.Check == test.check && finding.Severity == test.severity && finding.Object == test.object &&
					strings.Contains(finding.Found, test.found) {
					assert.Contains(t, finding.Fix, test.fix)
					assert.NotEmpty(t, finding.Means)
					return
				}
			}
			assert.Fail(t, "not found", "%+v", diagnose(f))
		})
	}
}

// A queue without statistics has no policies that could be judged.
func TestNoStatistics(t *testing.T) {
	f := healthy(t)
	f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) { q.Effective = nil })
	for _, check := range []string{"policies", "delivery-limit", "dead-letter-target"} {
		found := slices.DeleteFunc(diagnose(f), func(f Finding) bool { return f.Check != check })
		require.Len(t, found, 1)
		assert.Equal(t, Unseen, found[0].Severity)
		assert.Contains(t, found[0].Found, "orders")
		assert.Equal(t, noStatistics, found[0].Means)
	}
}

// What topics share is told once.
func TestSharedQueuesAreToldOnce(t *testing.T) {
	f := healthyUnder(t, config.Policy{Delays: []time.Duration{time.Minute}, Strategy: config.StrategyShared})
	plan, err := topology.New("payments", f.Topics[0].Policy, topology.Names{})
	require.NoError(t, err)
	f.Topics = append(f.Topics, inspect.Topic{Name: "payments", Policy: f.Topics[0].Policy, Plan: plan})
	f.Queues["retry.1m"] = inspect.Queue{Exists: inspect.Known(false)}
	told := slices.DeleteFunc(diagnose(f), func(f Finding) bool { return f.Object != `retry queue "retry.1m"` })
	assert.Len(t, told, 1, "%+v", told)
}

// The broker's own word counts more than its patterns, which are in a language of their own.
func TestPermissionsThatTheBrokerGives(t *testing.T) {
	f := healthy(t)
	f.Granted.Value.Configure = "^mine$"
	assert.Empty(t, lookPermissions(f))
	assert.Empty(t, lacking(inspect.Needs(f.Topics), httpapi.Permissions{Configure: "(?=x)", Write: "(?>x)",
		Read: "(?<!x)y"}), "Go cannot read them")
	assert.Len(t, lacking(inspect.Needs(f.Topics), httpapi.Permissions{}), len(inspect.Needs(f.Topics)))
}

// Where nothing of a topic is, that is what is said, and nothing of its parts.
func TestNothingOfATopic(t *testing.T) {
	f := healthy(t)
	f.VHost, f.Commands = "v'2", commands("v'2", false, false)
	for name := range f.Queues {
		f.Queues[name] = inspect.Queue{Exists: inspect.Known(false)}
	}
	for name := range f.Exchanges {
		f.Exchanges[name] = inspect.Exchange{Exists: inspect.Known(false)}
	}
	found := lookExists(f)
	require.Len(t, found, 1)
	assert.Equal(t,
		`virtual host "v'2" has neither the queue nor the 2 queues and 1 exchange for its retries`,
		found[0].Found)
	assert.Contains(t, found[0].Fix, `amqpretry topology apply --vhost='v'\''2' --policies 'retry.yaml' 'orders'`)

	assert.Equal(t, `amqpretry dlq stat --vhost='v'\''2' -- '-x'`, f.AMQPRetry("dlq stat", "-x"))
	f.VHost, f.Commands = "/", commands("/", false, false)
	assert.Equal(t, `amqpretry dlq stat -- '-x'`, f.AMQPRetry("dlq stat", "-x"))
	f.Commands = commands("/", true, false) // the URI may have another one
	assert.Equal(t, `amqpretry dlq stat --vhost='/' -- '-x'`, f.AMQPRetry("dlq stat", "-x"))
	f.Commands = commands("/", true, true)
	assert.Contains(t, lookExists(f)[0].Fix, "# with the same --uri\namqpretry topology apply")

	f.Queues["orders.dlq"] = inspect.Queue{Exists: inspect.Known(true)}
	assert.Len(t, lookExists(f), 3, "main queue, retry queue, exchange")
	f.Queues["orders.dlq"], f.All = inspect.Queue{Exists: inspect.Unseen[bool]("x")},
		inspect.Unseen[[]httpapi.Queue]("x")
	assert.Len(t, lookExists(f), 4, "and what was not seen")
}

// What is wrong on one version is none on another.
func TestChecksOfVersions(t *testing.T) {
	find := func(f Facts, check string) Severity {
		for _, finding := range diagnose(f) {
			if finding.Check == check {
				return finding.Severity
			}
		}
		return ""
	}
	for version, counted := range map[string]string{"3.10.8": "has returned that often",
		"4.2.1": "has returned that often",
		"4.3.0": "crashed consumers that often"} {
		f := healthy(t)
		f.Version = version
		f.change("orders.dlq", func(_ *inspect.Queue, q *httpapi.Queue) {
			q.Effective = httpapi.Arguments{"delivery-limit": int64(5)}
		})
		assert.Equal(t, Problem, find(f, "policies"), version)
		assert.Contains(t, lookPolicies(f)[0].Means, counted, version)
	}
	for version, severity := range map[string]Severity{"3.10.8": Problem, "4.0.5": OK, "4.3.6": OK} {
		// from 4.0 on a negative limit is none
		f := healthy(t)
		f.Version = version
		f.change("orders.dlq", func(_ *inspect.Queue, q *httpapi.Queue) {
			q.Effective = httpapi.Arguments{"delivery-limit": int64(-1)}
		})
		assert.Equal(t, severity, find(f, "policies"), version)
	}
	for version, severity := range map[string]Severity{"3.10.8": OK, "4.0.5": Problem, "4.3.6": Problem} {
		f := healthy(t)
		f.Version = version
		f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) { q.Arguments = httpapi.Arguments{} })
		assert.Equal(t, severity, find(f, "delivery-limit"), version)
	}
	assert.Contains(t, (Facts{Facts: inspect.Facts{Version: "4.3.6"}}).counts(),
		"Since RabbitMQ 4.3 a nack does not count")
	assert.Contains(t, (Facts{Facts: inspect.Facts{Version: "4.2.9"}}).counts(), ". Nacks, rejects")
}

// Without queues nothing is said of queues.
func TestTheBrokerAlone(t *testing.T) {
	f := healthy(t)
	f.Topics = nil
	for _, finding := range diagnose(f) {
		assert.Equal(t, OK, finding.Severity, "%+v", finding)
		assert.Contains(t, []string{"version", "features", "alarms", "nodes", "limits"}, finding.Check)
	}
	assert.Contains(t, text(f, diagnose(f), plain), "No queue was named")
}
