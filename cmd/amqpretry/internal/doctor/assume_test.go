package doctor

import (
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// Policies that are written in Go are nothing that doctor knows: a healthy service has no problem
// all the same, and no command declares what it does not need.
func testWithoutPolicies(l *lab) {
	delays := []time.Duration{time.Second, time.Minute}
	policies := map[string]config.Policy{
		"default": {},
		"orders":  {Delays: delays, Retries: 5},
		"payments": {Retries: 6, Backoff: config.Backoff{Kind: config.BackoffExponential, Initial: time.Second,
			Max: time.Minute}},
		"mails":        {Mode: config.ModeDeadLetter},
		"off":          {Mode: config.ModeOff},
		"classic":      {Delays: delays, ClassicQueues: true},
		"shared":       {Delays: delays, Strategy: config.StrategyShared},
		"shared-mails": {Mode: config.ModeDeadLetter, Strategy: config.StrategyShared},
		"exact":        {Strategy: config.StrategyLadder},
		"own-ladder": {Strategy: config.StrategyLadder, Delays: []time.Duration{300 * time.Millisecond},
			Ladder: config.Ladder{Prefix: "own", Levels: 2, Radix: 3}},
		"cycle":      {Strategy: config.StrategyCycle, Delays: delays[1:], Retries: 3},
		"redelivery": {Strategy: config.StrategyRedelivery, Delays: delays},
	}
	if since(4, 3)(l.version) {
		policies["native"] = config.Policy{Strategy: config.StrategyNative, Delays: delays[1:], Retries: 3}
	}
	for name, policy := range policies {
		plan, err := topology.New(name, policy, topology.Names{})
		require.NoError(l.t, err)
		arguments := plan.MainArguments
		if arguments == nil {
			arguments = topology.ProtectArguments(name + ".dlq")
			l.declare(name+".dlq", amqp.Table{"x-queue-type": "quorum", "x-queue-leader-locator": "balanced",
				"x-delivery-limit": int64(2147483647)}) // under the mode off as well
		}
		if name == "classic" {
			arguments = amqp.Table{"x-queue-type": "classic"}
		}
		l.declare(name, arguments)
		l.do(func(ch *amqp.Channel) error { return plan.Declare(ch) })
	}
	env := map[string]string{cli.EnvURI: l.uri, cli.EnvManagement: l.api}
	bad := func(v verdict) (found []string) {
		for _, f := range v.findings {
			if f.Severity == Problem || f.Severity == Warning {
				found = append(found, f.Object+": "+f.Found+"\n"+f.Fix)
			}
		}
		return found
	}
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		v := l.doctor(env, "--json", name)
		assert.Empty(l.t, bad(v), name)
		assert.Equal(l.t, cli.ExitOK, v.code, "%s: %s", name, v.err)
		assert.ElementsMatch(l.t, []string{"exists", "obsolete"}, unseenOf(v.findings), name)
	}
	over := map[string]string{cli.EnvURI: l.uri} // AMQP lists no queues
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		v := l.doctor(over, "--json", name)
		assert.Empty(l.t, bad(v), name)
	}

	queues := l.get("queues")
	for _, name := range []string{"orders", "mails", "exact", "shared", "cycle"} {
		l.deleteQueue(name + ".dlq")
		v := l.doctor(env, "--json", name)
		missing, found := find(v.findings, "exists", `"`+name+`.dlq"`, "no such queue")
		require.True(l.t, found, v.out)
		assert.Contains(l.t, missing.Fix, "--policies FILE '"+name+"'")
		for line := range strings.Lines(missing.Fix) {
			assert.Regexp(l.t, "^#", line, "nothing is declared by the default policy")
		}
	}
	l.deleteQueue("default.dlq")
	v := l.doctor(env, "--json", "default")
	missing, _ := find(v.findings, "exists", `"default.dlq"`, "no such queue")
	l.run(missing.Fix)
	v = l.doctor(env, "--json", "default")
	assert.Empty(l.t, bad(v))
	assert.NotContains(l.t, queues, "orders.retry.5s")

	v = l.doctor(env, "--json", "nobody")
	_, found := find(v.findings, "exists", `"nobody"`, "has neither the queue nor anything for its retries")
	assert.True(l.t, found, v.out)
	assert.NotContains(l.t, v.out, "nobody.retry.")
}
