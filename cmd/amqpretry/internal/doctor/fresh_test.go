package doctor

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// Statistics are fresh if they agree with what the broker says without a delay.
func TestStatisticsThatAreFresh(t *testing.T) {
	policy := func(name, pattern, applyTo string, priority int, length int64) httpapi.Policy {
		return httpapi.Policy{VHost: "/", Name: name, Pattern: pattern, ApplyTo: applyTo, Priority: priority,
			Definition: httpapi.Arguments{"max-length": length}}
	}
	five := httpapi.Arguments{"max-length": int64(5)}
	none := httpapi.Arguments{}
	type policies = []httpapi.Policy
	const all, queues = "all", "queues"
	p, lower, o := policy("p", "^orders", queues, 0, 5), policy("q", ".", queues, 1, 6), policy("o", "", all, 0, 5)
	of := func(applyTo string) policies { return policies{policy("p", "^orders", applyTo, 0, 5)} }
	of7 := policies{policy("p", "", all, 0, 7)}
	seven := httpapi.Arguments{"max-length": int64(7)}
	for name, test := range map[string]struct {
		policies, operators policies
		policy, operator    string
		effective           httpapi.Arguments
		fresh               bool
	}{
		"none":                   {nil, nil, "", "", none, true},
		"no statistics":          {},
		"new":                    {policies{p}, nil, "", "", none, false},
		"gone":                   {nil, nil, "p", "", five, false},
		"applies":                {of(all), nil, "p", "", five, true},
		"of quorum queues":       {of("quorum_queues"), nil, "p", "", five, true},
		"of other queues":        {of("classic_queues"), nil, "", "", none, true},
		"of exchanges":           {of("exchanges"), nil, "", "", none, true},
		"of other names":         {policies{policy("p", "^order$", queues, 0, 5)}, nil, "", "", none, true},
		"changed":                {policies{policy("p", "", queues, 0, 6)}, nil, "p", "", five, false},
		"a higher one":           {policies{p, lower}, nil, "p", "", five, false},
		"the higher one":         {policies{policy("p", "", queues, 2, 5), lower}, nil, "p", "", five, true},
		"one of two":             {policies{lower, policy("p", "", queues, 1, 5)}, nil, "p", "", five, true},
		"may match":              {policies{policy("p", "(?=orders)", queues, 0, 5)}, nil, "p", "", five, true},
		"may not match":          {policies{policy("p", "(?=orders)", queues, 0, 5)}, nil, "", "", none, true},
		"operator's, the lower":  {of7, policies{o}, "p", "o", five, true},
		"operator's, not yet":    {of7, policies{o}, "p", "", seven, false},
		"operator's, gone again": {policies{p}, nil, "p", "o", five, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy(t)
			f.Policies, f.OperatorPolicies = inspect.Known(test.policies), inspect.Known(test.operators)
			f.change("orders", func(_ *inspect.Queue, q *httpapi.Queue) {
				q.Policy, q.OperatorPolicy, q.Effective = &test.policy, &test.operator, test.effective
			})
			assert.Equal(t, test.fresh, f.Current(inspect.Object{Name: "orders", Role: inspect.RoleMain},
				f.Queues["orders"]))
		})
	}

	for role, numbers := range map[inspect.Role][2]bool{inspect.RoleMain: {true, true}, inspect.RoleRetry: {true,
		false},
		inspect.RoleDelay: {true, false}, inspect.RoleDeadLetter: {false, false}, inspect.RoleLanding: {false, false}} {
		f := healthy(t)
		q := f.Queues["orders.dlq"]
		q.Ready = 1
		assert.Equal(t, numbers[0], f.Current(inspect.Object{Role: role}, q), "%s: messages", role)
		q.Ready, q.Consumers = 0, 1
		assert.Equal(t, numbers[1], f.Current(inspect.Object{Role: role}, q), "%s: consumers", role)
	}
}

// Statistics that stay old are judged, and are not called complete.
func TestStatisticsThatStayOld(t *testing.T) {
	f := healthy(t)
	f.change("orders.dlq", func(q *inspect.Queue, d *httpapi.Queue) {
		q.Stale, d.Effective = true, httpapi.Arguments{"message-ttl": int64(5)}
	})
	all := diagnose(f)
	_, found := find(all, "policies", "orders.dlq", "message-ttl")
	assert.True(t, found)
	old, found := find(all, "policies", broker, "orders.dlq")
	require.True(t, found)
	assert.Equal(t, Unseen, old.Severity)
	assert.NotContains(t, text(f, all, plain), "all checks are complete")
}

// What has changed just now is found at once, and so is that it was put right.
func testChangedJustNow(l *lab) {
	plan := l.protected("orders")
	problems := func() (found []string) {
		v := l.full("orders")
		require.Empty(l.t, unseenOf(v.findings))
		for _, f := range v.findings {
			if slices.Contains([]Severity{Problem, Warning}, f.Severity) {
				found = append(found, f.Check+": "+f.Found)
			}
		}
		assert.Equal(l.t, len(found) == 0, v.code == cli.ExitOK)
		return found
	}
	assert.Empty(l.t, problems(), "queues without statistics, or with old ones")
	l.policy("policies", "short", "^orders[.]", `{"message-ttl":50000}`, 0)
	assert.Len(l.t, problems(), 3, "two retry queues and the dead-letter queue")
	l.broker.API("DELETE", nil, "policies", l.vhost, "short")
	assert.Empty(l.t, problems())
	l.policy("operator-policies", "short", "^orders[.]retry", `{"expires":3600000}`, 0)
	assert.Len(l.t, problems(), 2)
	l.broker.API("DELETE", nil, "operator-policies", l.vhost, "short")
	l.publish(plan.DeadLetterQueue)
	assert.Equal(l.t, []string{"dead-letters: 1 message"}, problems())
	l.broker.API("DELETE", nil, "queues", l.vhost, plan.DeadLetterQueue, "contents")
	assert.Empty(l.t, problems())

	// A policy that RabbitMQ does not apply, as quorum queues know no max-age.
	l.policy("policies", "age", "^orders[.]", `{"max-age":"1D","message-ttl":50000}`, 0)
	assert.Empty(l.t, problems())
}
