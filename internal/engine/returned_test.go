package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

func brokerDriven(strategy config.Strategy) config.Policy {
	return config.Policy{Strategy: strategy, Delays: []time.Duration{time.Second}, Retries: 3,
		CrashLimit: 5}.WithDefaults()
}

func TestArriveOfReturnedMessages(t *testing.T) {
	cycle, redelivery, native := brokerDriven(config.StrategyCycle), brokerDriven(config.StrategyRedelivery),
		brokerDriven(config.StrategyNative)
	linear := native
	linear.Delays = []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}
	aged := redelivery
	aged.MaxAge = time.Hour
	patient := redelivery
	patient.Retries = 40
	copied := map[string]any{header.Version: "1", header.Queue: "orders", header.Count: "2", header.Delay: "1s"}
	dead := map[string]any{header.Version: "1", header.Queue: "orders", header.Count: "-1"}
	const crashed, byCopy = true, true
	// back is a message that the broker has returned for each of its deliveries.
	back := func(n int64) Arriving {
		return Arriving{Redelivered: true, Deliveries: n, Returned: Returned{Failures: n}}
	}
	with := func(m Arriving, change func(*Arriving)) Arriving {
		change(&m)
		return m
	}
	foreign := func(m *Arriving) { m.Returned.Foreign = true }
	for name, test := range map[string]struct {
		policy  config.Policy
		m       Arriving
		count   int
		crashed bool
		byCopy  bool
	}{
		"fresh":    {redelivery, Arriving{}, 0, false, false},
		"returned": {redelivery, back(2), 2, false, false},
		"a copy, returned": {redelivery, with(back(1), func(m *Arriving) { m.Headers, m.Waited = copied, "1s" }), 3,
			false, false},
		"more than it allows":     {redelivery, back(7), 3, false, false},
		"and at its crash limit":  {redelivery, back(8), 3, crashed, false},
		"near the broker's limit": {patient, back(18), 18, false, byCopy},
		"nearer than a failure":   {patient, back(19), 18, crashed, byCopy},
		"of another queue":        {redelivery, with(back(4), foreign), 0, false, byCopy},
		"and died there":          {redelivery, with(back(5), foreign), 0, crashed, byCopy},
		"not counted": {redelivery, Arriving{Redelivered: true, Returned: Returned{Uncounted: true}},
			0, false, byCopy},
		"too large":            {native, Arriving{Returned: Returned{TooLarge: true}}, 0, false, byCopy},
		"of unknown age":       {aged, Arriving{}, 0, false, byCopy},
		"of known age":         {aged, Arriving{Timestamp: time.Now()}, 0, false, false},
		"a replay with an age": {aged, Arriving{Timestamp: time.Now(), Headers: dead}, 0, false, byCopy},
		"a replay":             {redelivery, with(back(1), func(m *Arriving) { m.Headers = dead }), 1, false, false},
		"a watched replay": {redelivery, Arriving{Headers: map[string]any{header.Version: "1",
			header.Queue: "orders", header.Count: "-1", header.Canary: "x"}}, 0, false, byCopy},
		"a copy, native":     {native, Arriving{Headers: copied, Waited: "1s"}, 2, false, false},
		"a copy, linear":     {linear, Arriving{Headers: copied, Waited: "1s"}, 2, false, byCopy},
		"a copy, cycle":      {cycle, Arriving{Headers: copied, Waited: "1s"}, 2, false, byCopy},
		"rejected":           {cycle, Arriving{Waited: "1s", Returned: Returned{Failures: 3}}, 3, false, false},
		"rejected too often": {cycle, Arriving{Waited: "1s", Returned: Returned{Failures: 300}}, 3, false, false},
		"rejected and crashed": {cycle, Arriving{Waited: "1s", Redelivered: true, Deliveries: 5,
			Returned: Returned{Failures: 1}}, 1, crashed, false},
		"expires, redelivered":  {redelivery, Arriving{Expiration: "60000"}, 0, false, byCopy},
		"expires":               {cycle, Arriving{Expiration: "60000"}, 0, false, byCopy},
		"expires, native":       {native, Arriving{Expiration: "60000"}, 0, false, byCopy},
		"forged headers":        {cycle, Arriving{Headers: copied}, 0, false, byCopy},
		"replayed into a cycle": {cycle, Arriving{Headers: dead}, 0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			test.m.IsRetryQueue = func(name, delay string) bool { return name == delay }
			a := Arrive("orders", &test.policy, &test.m, time.Now())
			assert.Equal(t, test.count, a.State.Count)
			assert.Equal(t, test.crashed, a.Crash != nil, "%v", a.Crash)
			assert.Equal(t, test.byCopy, a.ByCopy)
		})
	}
}

func TestDecideByBroker(t *testing.T) {
	const s = time.Second
	now := time.Now()
	byBroker := func(count int, delay time.Duration) retry.Verdict {
		return retry.Verdict{Action: retry.ActionRetry, Count: count, Delay: delay, ByBroker: true}
	}
	byCopy := func(count int) retry.Verdict { return retry.Verdict{Action: retry.ActionRetry, Count: count, Delay: s} }
	for strategy, delay := range map[config.Strategy]time.Duration{config.StrategyCycle: s, config.StrategyNative: s,
		config.StrategyRedelivery: 0} {
		policy := brokerDriven(strategy)
		for name, test := range map[string]struct {
			c    Case
			want retry.Verdict
		}{
			"an error":    {Case{Class: retry.ClassError}, byBroker(1, delay)},
			"a panic":     {Case{Class: retry.ClassPanic, Failures: 2}, byBroker(3, delay)},
			"its outputs": {Case{Class: retry.ClassUnpublishable}, byBroker(1, delay)},
			"the last": {Case{Class: retry.ClassError, Failures: 3},
				retry.Verdict{Action: retry.ActionDeadLetter, Reason: retry.ReasonExhausted}},
			"a crash":      {Case{Class: retry.ClassCrashed}, byCopy(1)},
			"by a copy":    {Case{Class: retry.ClassError, Copy: true}, byCopy(1)},
			"wants a wait": {Case{Class: retry.ClassError, After: s}, byCopy(1)},
			"postponed": {Case{Class: retry.ClassPostponed, After: s},
				retry.Verdict{Action: retry.ActionPostpone, Delay: s}},
			"too late to wait": {Case{Class: retry.ClassError, Deadline: now.Add(delay)}, byBroker(1, delay)},
		} {
			if name == "too late to wait" && delay > 0 {
				test.want = retry.Verdict{Action: retry.ActionDeadLetter, Reason: retry.ReasonExpired}
			} else if name == "too late to wait" {
				test.c.Deadline = now.Add(1)
			}
			test.c.Now = now
			assert.Equal(t, test.want, Decide(&policy, test.c), "%s: %s", strategy, name)
		}
	}
	assert.Equal(t, "retry 2 at once, by the broker", byBroker(2, 0).String())
	assert.Equal(t, "retry 2 after 1s, by the broker", byBroker(2, s).String())
}
