package topology_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

func TestString(t *testing.T) {
	plan := mustPlan(t, "orders", config.Policy{Delays: []time.Duration{time.Second}})
	assert.Equal(t, `main queue  orders                           as its own config says
exchange    orders.retry                     headers
queue       orders.retry.1s                  x-dead-letter-exchange="" x-dead-letter-routing-key="orders" x-dead-letter-strategy="at-least-once" x-delivery-limit=2147483647 x-message-ttl=1000 x-overflow="reject-publish" x-queue-leader-locator="balanced" x-queue-type="quorum"
queue       orders.dlq                       x-delivery-limit=2147483647 x-queue-leader-locator="balanced" x-queue-type="quorum"
binding     orders.retry -> orders.retry.1s  amqpretry-delay="1s" x-match="all"
binding     orders.retry -> orders.dlq       amqpretry-count="-1" x-match="all"
`, plan.String())
	assert.Equal(t, "main queue orders: nothing is declared\n",
		mustPlan(t, "orders", config.Policy{Mode: config.ModeOff}).String())
}

func TestMermaid(t *testing.T) {
	plan := mustPlan(t, "orders", config.Policy{Delays: []time.Duration{time.Second, 90 * time.Second}})
	assert.Equal(t, `flowchart LR
    publisher(["publisher"]) --> main["orders"]
    main --> consumer(["consumer"])
    exchange1{{"orders.retry"}}
    consumer -- "failed" --> exchange1
    queue1["orders.retry.1s"]
    queue1 -- "after 1s" --> main
    queue2["orders.retry.90s"]
    queue2 -- "after 90s" --> main
    queue3[("orders.dlq")]
    exchange1 -- "amqpretry-delay: 1s" --> queue1
    exchange1 -- "amqpretry-delay: 90s" --> queue2
    exchange1 -- "amqpretry-count: -1" --> queue3
`, plan.Mermaid())
	assert.Equal(t, `flowchart LR
    publisher(["publisher"]) --> main["orders"]
    main --> consumer(["consumer"])
`, mustPlan(t, "orders", config.Policy{Mode: config.ModeOff}).Mermaid())
}

func TestDOT(t *testing.T) {
	plan := mustPlan(t, "orders", config.Policy{Delays: []time.Duration{time.Second}})
	assert.Equal(t, `digraph {
    rankdir=LR
    node [shape=box]
    publisher [shape=oval]
    consumer [shape=oval]
    main [label="orders"]
    publisher -> main
    main -> consumer
    exchange1 [label="orders.retry", shape=hexagon]
    consumer -> exchange1 [label="failed"]
    queue1 [label="orders.retry.1s", shape=box]
    queue1 -> main [label="after 1s"]
    queue2 [label="orders.dlq", shape=cylinder]
    exchange1 -> queue1 [label="amqpretry-delay: 1s"]
    exchange1 -> queue2 [label="amqpretry-count: -1"]
}
`, plan.DOT())

	shared := mustPlan(t, "orders", config.Policy{Delays: []time.Duration{time.Second},
		Strategy: config.StrategyShared})
	for _, line := range []string{
		`queue1 -> exchange2 [label="after 1s"]`, `exchange2 -> main [label="key orders"]`,
		`consumer -> queue2 [label="the end"]`,
	} {
		assert.Contains(t, shared.DOT(), line)
	}
}

// Whatever a queue is called, its name stays inside its quotes.
func TestDOTEscapesNames(t *testing.T) {
	plan := mustPlan(t, "a\"]; \\N &amp; <b>\x00é\u202e", config.Policy{Mode: config.ModeOff})
	assert.Contains(t, plan.DOT(), `main [label="a\"]; \\N &amp;amp; <b>`+"\ufffd"+`é&#8238;"]`)

	lines := regexp.MustCompile(
		`^(digraph \{|\}|    \w+=LR|    \w+( -> \w+)?( \[(label="(?:[^"\\\n]|\\["\\])*"(, )?)?(shape=\w+)?\])?)$`)
	rapid.Check(t, func(t *rapid.T) {
		queue := rapid.StringN(1, 40, 100).Draw(t, "queue")
		plan, err := topology.New(queue, config.Policy{}, topology.Names{})
		if err != nil {
			return // names that the broker would not take either
		}
		for _, line := range strings.Split(strings.TrimSuffix(plan.DOT(), "\n"), "\n") {
			if !lines.MatchString(line) {
				t.Fatalf("line %q", line)
			}
		}
	})
}

// Whatever a queue is called, its name stays inside its quotes.
func TestMermaidEscapesNames(t *testing.T) {
	plan := mustPlan(t, "a\"]; end #quot; <b>`x`\x00", config.Policy{Mode: config.ModeOff})
	assert.Contains(t, plan.Mermaid(), `main["a#34;#93;#59; end #35;quot#59; #60;b#62;#96;x#96;`+"\ufffd"+`"]`)

	lines := regexp.MustCompile(
		`^(flowchart LR|    [\w]+([\[({]+"[^"\n<>\x60]*"[\])}]+)?( -- "[^"\n]*")?( --> \w+([\[({]+"[^"\n<>\x60]*"[\])}]+)?)?)$`)
	rapid.Check(t, func(t *rapid.T) {
		queue := rapid.StringN(1, 40, 100).Draw(t, "queue")
		plan, err := topology.New(queue, config.Policy{}, topology.Names{})
		if err != nil {
			return // names that the broker would not take either
		}
		for _, line := range strings.Split(strings.TrimSuffix(plan.Mermaid(), "\n"), "\n") {
			if !lines.MatchString(line) {
				t.Fatalf("line %q", line)
			}
		}
	})
}

func TestStrategiesAreDrawn(t *testing.T) {
	native := config.Policy{Strategy: config.StrategyNative, Delays: []time.Duration{10 * time.Second}, Retries: 2}
	linear := config.Policy{Strategy: config.StrategyNative, Delays: []time.Duration{10 * time.Second, 20 * time.Second}}
	for wanted, policy := range map[string]config.Policy{
		`    consumer -- "failed: rejected" --> main
    main -- "dead-lettered" --> exchange2
`: cycle(),
		`    exchange2 -- "x-first-death-reason: rejected" --> queue1
    exchange2 -- "x-first-death-reason: expired" --> queue2
    exchange2 -- "x-first-death-reason: maxlen" --> queue2
    exchange2 -- "x-first-death-reason: delivery_limit" --> queue2
`: cycle(),
		`    consumer -- "failed: returned at once" --> main
    main -- "delivery limit" --> queue2
`: {Strategy: config.StrategyRedelivery, Delays: []time.Duration{time.Second}},
		`    consumer -- "failed: returned after 10s" --> main
    main -- "delivery limit" --> queue2
`: native,
		`    consumer -- "failed: returned after 10s to 20s" --> main
    main -- "delivery limit" --> queue3
`: linear,
	} {
		plan := mustPlan(t, "orders", policy)
		assert.Contains(t, plan.Mermaid(), wanted)
		assert.Contains(t, plan.Mermaid(), `consumer -- "failed: by a copy" --> exchange1`)
		assert.Regexp(t, `^main queue  orders +as its own config says, with x-dead-letter-exchange=`, plan.String())
	}
}
