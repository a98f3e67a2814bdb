package retire

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// Every retry queue that a plan can have is found again by its arguments, and only for its own main
// queue and names.
func TestPlanOfFindsWhatNewMakes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		delay := time.Duration(rapid.Int64Range(1, 315_360_000_000).Draw(t, "ms")) * time.Millisecond
		policy := config.Policy{Delays: []time.Duration{delay},
			ClassicQueues: rapid.Bool().Draw(t, "classic")}
		names := topology.Names{}
		if rapid.Bool().Draw(t, "custom names") {
			names.RetryQueue = func(p topology.RetryQueueParams) string {
				return fmt.Sprint(p.Classic, "/", p.Delay, "/", p.Queue)
			}
		}
		plan, err := topology.New("q", policy, names)
		if err != nil {
			t.Fatal(err)
		}
		queue := plan.Queues[0]
		found, ok := planOf("q", names, queue.Name, queue.Arguments)
		if !ok || !assert.ObjectsAreEqual(plan, found) {
			t.Fatalf("%+v instead of %+v", found, plan)
		}
		for _, wrong := range []func() bool{
			func() bool { _, ok := planOf("p", names, queue.Name, queue.Arguments); return ok },
			func() bool { _, ok := planOf("q", names, queue.Name+"x", queue.Arguments); return ok },
			func() bool {
				_, ok := planOf("q", topology.Names{RetryQueue: func(topology.RetryQueueParams) string {
					return "other"
				}}, queue.Name, queue.Arguments)
				return ok
			},
		} {
			if wrong() {
				t.Fatal("found for another")
			}
		}
	})
}

func TestPlanOfNeedsEveryArgument(t *testing.T) {
	for argument, others := range map[string][]any{
		amqp.QueueTypeArg:           {nil, "", "classic", "stream", int64(1)},
		amqp.QueueMessageTTLArg:     {nil, int64(0), int64(-1), int64(7001), int64(315_360_000_001), 7000.0, "7000"},
		"x-dead-letter-exchange":    {nil, "amq.direct", int64(0)},
		"x-dead-letter-routing-key": {nil, "", "Q", int64(0)},
	} {
		for _, other := range others {
			arguments := amqp.Table{amqp.QueueTypeArg: "quorum", amqp.QueueMessageTTLArg: int64(7000),
				"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
			_, ok := planOf("q", topology.Names{}, "q.retry.7s", arguments)
			assert.True(t, ok)
			arguments[argument] = other
			if other == nil {
				delete(arguments, argument)
			}
			_, ok = planOf("q", topology.Names{}, "q.retry.7s", arguments)
			assert.False(t, ok, "%s: %#v", argument, other)
		}
	}
}
