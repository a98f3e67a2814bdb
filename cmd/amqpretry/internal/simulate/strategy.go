package simulate

import (
	"encoding/json"
	"maps"
	"math"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

// By whom a message is brought to where it waits.
const (
	byBroker = "broker"
	byCopy   = "copy"
)

// mostReturns is how often the broker returns a message at most under the strategies that count returns. The consumer
// publishes a copy then: from RabbitMQ 4.0 on the broker drops a message after 20 returns by default.
const mostReturns = 18

// played is the policy under which a life is played. The middleware is that of the strategy copy, and carried says
// later what the broker does instead. Under the strategy redelivery the longest jitter makes each wait the shortest
// one, and leaves waits that errors ask for as they are.
func played(policy config.Policy) (_ config.Policy, dice float64) {
	strategy := policy.Strategy
	policy.Strategy = config.StrategyCopy
	if strategy != config.StrategyRedelivery {
		return policy, 0
	}
	policy.Jitter = 1

	return policy, math.Nextafter(1, 0)
}

// carriage is what follows a step.
type carriage struct {
	by      string
	at      time.Time     // of the step
	wait    time.Duration // after it
	headers map[string]string
}

// carried says for each step of a life by whom the message is brought on, and corrects times and headers.
func carried(o options, policy config.Policy, life retrytest.Result) (all []carriage, ended time.Time) {
	c := carrier{options: o, policy: policy}
	for _, s := range life.Steps {
		all = append(all, c.step(s))
	}

	return all, life.Ended.Add(c.shift)
}

// carrier follows a message.
type carrier struct {
	options
	policy config.Policy

	shift   time.Duration // of what was played, so far
	returns int           // by the broker since it was published, as a message or as a copy
	copied  bool          // it carries headers of the library
	lost    bool          // the broker has brought it back, and no copy tells of these failures
	since   time.Time
	history []failure
}

func (c *carrier) step(s retrytest.Step) carriage {
	next := carriage{at: s.At.Add(c.shift), wait: s.Waited}
	switch {
	case s.Verdict.Action == retry.ActionRetry && c.returned(s.Verdict):
		next.by = byBroker
		if c.policy.Strategy == config.StrategyRedelivery {
			next.wait = 0
		}
		c.returns++
		c.lost = true
	case s.Headers != nil:
		next.by = byCopy
		if s.Verdict.Wait > 0 && c.policy.Strategy == config.StrategyRedelivery {
			next.wait = s.Verdict.Delay
		}
		if c.since.IsZero() {
			c.since = next.at
		}
		next.headers = c.told(s)
		c.copied, c.returns = true, 0
	}
	c.shift += next.wait - s.Waited

	return next
}

// returned tells whether it is the broker that brings a failed message back.
func (c *carrier) returned(v retry.Verdict) bool {
	switch {
	case !c.policy.BrokerDriven(), c.policy.MaxAge > 0: // it has no timestamp
		return false
	case c.retryAfter > 0, !v.NotBefore.IsZero():
		return false
	case c.policy.CountsReturns() && c.returns >= mostReturns:
		return false
	case c.policy.Strategy == config.StrategyCycle: // which takes an expiration away
		return !c.copied && c.expiration == 0
	case c.policy.IsLinear():
		return !c.copied
	default:
		return true
	}
}

// failure is an entry of the history.
type failure struct {
	Number int          `json:"n"`
	At     string       `json:"at"`
	Error  string       `json:"error,omitempty"`
	Type   string       `json:"type,omitempty"`
	Reason retry.Reason `json:"reason,omitempty"`
}

// told are the headers of a copy without the failures of which the broker keeps only the number.
func (c *carrier) told(s retrytest.Step) map[string]string {
	if s.Verdict.Action != retry.ActionPostpone {
		var all []failure
		_ = json.Unmarshal([]byte(s.Headers[header.History]), &all) // it was just written
		if len(all) > 0 {
			last := all[len(all)-1]
			last.At = moved(last.At, c.shift)
			c.history = append(c.history, last)
		}
	}
	if !c.lost {
		return s.Headers
	}

	told := maps.Clone(s.Headers)
	if len(c.history) > 0 {
		history, _ := json.Marshal(c.history) // texts and numbers
		told[header.History] = string(history)
		told[header.FirstFailure] = c.history[0].At
	}
	told[header.LastFailure] = moved(told[header.LastFailure], c.shift)
	told[header.Since] = c.since.UTC().Format(timeFormat)

	return told
}

// timeFormat is that of times in headers.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

func moved(text string, by time.Duration) string {
	at, err := time.Parse(timeFormat, text)
	if err != nil {
		return text
	}

	return at.Add(by).Format(timeFormat)
}
