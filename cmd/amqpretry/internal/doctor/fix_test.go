package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// Policies apply to parts of a ladder, the user's and the operator's: one command for each takes
// all harmful keys away. Its policy applies to all queues of the ladder, so it has no key either
// that would harm another queue.
func TestOneFixForALadder(t *testing.T) {
	f, ladder := exactly(t)
	definitions := map[string]httpapi.Arguments{
		"p":  {"message-ttl": int64(1500), "dead-letter-routing-key": "x", "delivery-limit": int64(5)},
		"p2": {"message-ttl": int64(9e9), "max-age": "1D"},
		"o":  {"expires": int64(7)},
	}
	f.Policies = inspect.Known([]httpapi.Policy{{VHost: "/", Name: "p2", Priority: 7, Definition: definitions["p2"]},
		{VHost: "/", Name: "p", Definition: definitions["p"]}})
	f.OperatorPolicies = inspect.Known([]httpapi.Policy{{VHost: "/", Name: "o", Priority: 3,
		Definition: definitions["o"]}})
	for _, q := range ladder.Shared().Queues {
		name := "p"
		if q.Name == ladder.Unroutable() {
			name = "p2"
		}
		f.change(q.Name, func(_ *inspect.Queue, d *httpapi.Queue) {
			d.Policy, d.Effective = &name, definitions[name]
			if q.Name == ladder.WaitQueue(0, 1) {
				d.OperatorPolicy, d.Effective = ptr("o"), inspect.Together(definitions["p"], definitions["o"])
			}
		})
	}
	found := diagnose(f)
	fixes := fixesOf(found, "policies")
	require.Len(t, fixes, 1, "%v", fixes)
	assert.Regexp(t, `^# Nothing else .*\nrabbitmqctl set_policy .*--priority 8 .*'{"max-age":"1D"}' &&\n`+
		`rabbitmqctl set_operator_policy .*--priority 4 .*'{"max-length-bytes":1000000000000000}'$`, fixes[0])
	printed := text(f, found, plain)
	assert.Equal(t, 1, strings.Count(printed, "set_policy"), printed)
}

// fixesOf are the different commands that a check has found.
func fixesOf(findings []Finding, checks ...string) []string {
	var fixes []string
	for _, f := range findings {
		if slices.Contains(checks, f.Check) && f.Fix != "" && !slices.Contains(fixes, f.Fix) {
			fixes = append(fixes, f.Fix)
		}
	}
	return fixes
}

// A main queue that lacks protection and has a harmful key gets one policy for both: a second one
// of the same name would undo the first.
func TestOneFixForAMainQueue(t *testing.T) {
	f := healthy(t)
	definition := httpapi.Arguments{"expires": int64(5), "max-length": int64(9), "max-priority": int64(3)}
	f.Policies = inspect.Known([]httpapi.Policy{{VHost: "/", Name: "p", Priority: 3, Definition: definition}})
	f.OperatorPolicies = inspect.Known([]httpapi.Policy{{VHost: "/", Name: "o", Definition: httpapi.Arguments{
		"message-ttl": int64(7)}}})
	f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
		q.Arguments = httpapi.Arguments{"x-queue-type": "quorum"}
		q.Policy, q.OperatorPolicy = ptr("p"), ptr("o")
		q.Effective = inspect.Together(definition, f.OperatorPolicies.Value[0].Definition)
	})
	fixes := fixesOf(diagnose(f), "policies", "delivery-limit", "dead-letter-target")
	require.Len(t, fixes, 1, "%v", fixes)
	assert.Contains(t, fixes[0], `--priority 100 --apply-to queues 'amqpretry.orders' '^orders$' `+
		`'{"dead-letter-exchange":"","dead-letter-routing-key":"orders.dlq",`+
		`"dead-letter-strategy":"at-least-once","delivery-limit":1000,"max-length":9,"max-priority":3,"overflow":"reject-publish"}' &&`, "a limit that rejects stays")
	assert.Contains(t, fixes[0], "set_operator_policy")

	// Protected, the queue keeps its own arguments, and the limit goes, as the queue drops
	// messages.
	f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
		q.Arguments = httpapi.Arguments(topology.ProtectArguments("orders.dlq"))
		delete(q.Arguments, "x-overflow")
	})
	fixes = fixesOf(diagnose(f), "policies", "delivery-limit", "dead-letter-target")
	require.Len(t, fixes, 1, "%v", fixes)
	assert.Contains(t, fixes[0], `'{"max-priority":3}'`)
}

// Each level of a ladder says what a routing key of a policy does to it, and each kind of queue
// what a TTL does.
func TestMeaningsOnALadder(t *testing.T) {
	f, ladder := exactly(t)
	definition := httpapi.Arguments{"message-ttl": int64(1500), "dead-letter-routing-key": "x"}
	f.Policies = inspect.Known([]httpapi.Policy{{VHost: "/", Name: "p", Definition: definition}})
	for _, q := range ladder.Shared().Queues {
		f.change(q.Name, func(_ *inspect.Queue, d *httpapi.Queue) { d.Policy, d.Effective = ptr("p"), definition })
	}
	found := diagnose(f)
	for part, means := range map[string]string{
		`queue for unroutable messages "` + ladder.Unroutable() + `": message-ttl: 1500`: "deletes messages at that age",
		`44 objects (delay queue "` + ladder.WaitQueue(1, 2): "messages return after 1500 ms instead of the time that " +
			"the name of the queue ends in",
		`9 objects (delay queue "` + ladder.WaitQueue(0, 1):  "messages of level 0 lose their target",
		`45 objects (delay queue "` + ladder.WaitQueue(1, 1): "messages above level 0 stay in their queue",
	} {
		finding, ok := find(found, "policies", theLadder, part)
		require.True(t, ok, "%s: %+v", part, fixesOf(found, "policies"))
		assert.Contains(t, finding.Means, means)
	}

	f, _ = exactly(t)
	f.change(ladder.WaitQueue(1, 2), func(_ *inspect.Queue, d *httpapi.Queue) {
		d.Effective = httpapi.Arguments{"message-ttl": int64(1500)}
	})
	finding, _ := find(diagnose(f), "policies", theLadder, "message-ttl")
	assert.Contains(t, finding.Means, "messages return after 1500 ms instead of 2s")
}

// The shares of targets are those of the messages that were read.
func TestSharesOfTargets(t *testing.T) {
	f, ladder := exactly(t)
	shares := map[string]int{`"a"`: 600, `"b"`: 400}
	f.Unroutable = map[string]inspect.Seen[map[string]int]{ladder.Unroutable(): inspect.Known(shares)}
	for n, want := range map[int64]string{
		7500: `7500 messages that no target takes: of the first 1000: 600 for "a", 400 for "b"`,
		1000: `1000 messages that no target takes: 600 for "a", 400 for "b"`,
	} {
		f.change(ladder.Unroutable(), func(_ *inspect.Queue, q *httpapi.Queue) { q.Messages = &n })
		found, _ := find(diagnose(f), "unroutable", theLadder, "")
		assert.Equal(t, want, found.Found)
	}
}

var policyName = regexp.MustCompile(`(?m)set_(operator_)?policy .*--apply-to queues '([^']*)'`)

// Whoever runs all that doctor prints, once and in order, has nothing harmful left: no command
// undoes another.
func testFixesOfPolicies(l *lab) {
	t := l.t
	ladder := l.exact()
	name := ladder.Name()
	for _, queue := range []string{"orders", "bare"} {
		l.declare(queue, map[string]amqp.Table{"orders": topology.ProtectArguments("orders.dlq"),
			"bare": {"x-queue-type": "quorum", "x-delivery-limit": 20}}[queue])
		l.run(fmt.Sprintf("amqpretry topology apply --policies \"%s\" %s", l.policies, queue))
	}
	harm := `{"message-ttl":250,"dead-letter-routing-key":"x","max-length":5000}`
	l.policy("policies", "unroutable", "^lad[.].*unroutable$", harm, 9)
	l.policy("policies", "waits", "^lad[.].*ms$", harm, 2)
	l.policy("operator-policies", "operator", "^lad[.].*00ms$", `{"expires":3600000}`, 0)
	l.policy("policies", "main", "^bare$", `{"expires":3600000,"delivery-limit":7}`, 150)

	harmful := func() (found []Finding) {
		for _, f := range l.full("orders", "bare").findings {
			if slices.Contains([]Severity{Unseen, Problem, Warning}, f.Severity) {
				found = append(found, f)
			}
		}
		return found
	}
	var found []Finding
	l.await("all is found", func() bool {
		found = harmful()
		_, unroutable := find(found, "policies", name, "unroutable\": message-ttl")
		_, waits := find(found, "policies", name, "dead-letter-routing-key")
		_, operator := find(found, "policies", name, `expires: 3600000, from the operator policy "operator"`)
		_, expires := find(found, "policies", `"bare"`, "expires")
		_, limit := find(found, "delivery-limit", `"bare"`, "")
		return unroutable && waits && operator && expires && limit && len(unseenOf(found)) == 0
	})

	v := l.doctor(map[string]string{cli.EnvURI: l.uri, cli.EnvManagement: l.api}, "--policies", l.policies, "orders",
		"bare")
	printed := map[string]int{}
	for _, match := range policyName.FindAllStringSubmatch(v.out, -1) {
		printed[match[1]+match[2]]++
	}
	once := map[string]int{"amqpretry." + name: 1, "operator_amqpretry." + name: 1, "amqpretry.bare": 1}
	assert.Equal(t, once, printed, v.out)

	for _, fix := range fixesOf(found, "policies", "delivery-limit", "dead-letter-target") {
		l.run(fix)
	}
	assert.Contains(t, l.get("policies"), "amqpretry."+name)
	await.Until(t, func() bool { return len(harmful()) == 0 }, "nothing harmful is found")
}
