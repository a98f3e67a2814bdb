package simulate

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

// almostOne is what the dice show for the shortest wait.
const almostOne = 1 - 1e-9

// play plays the life of a message; dice are from 0, for the longest waits of jitter, to almostOne,
// for the shortest.
func play(o options, policy config.Policy, start time.Time, dice float64) (retrytest.Result, error) {
	clock := retrytest.NewClock(start)
	result := retrytest.Run(retrytest.Service{
		Policy: policy, Topic: o.topic, Queue: o.queue, Host: "simulated-host",
		Clock: clock, Random: dice, Expiration: o.expiration,
		ConsumerHandler: func(msg *message.Message) error {
			clock.Advance(o.handlerTime)
			attempt, _ := retry.AttemptFromContext(msg.Context())

			return o.failure(policy, attempt)
		},
	}, message.NewMessage("simulated-message", []byte("{}")))

	return result, result.Err
}

// failure is what the handler returns at an attempt.
func (o options) failure(policy config.Policy, attempt retry.Attempt) error {
	err := errors.New(o.errorText)
	switch {
	case o.postpone > 0 && attempt.Calls == 0:
		return retry.Postpone(o.postpone)
	case attempt.Number == o.succeedAt:
		return nil
	case attempt.Number == o.permanentAt, o.errorType != "" && !retries(policy, o.errorType):
		return retry.Permanent(err)
	case o.retryAfter > 0:
		return retry.RetryAfter(o.retryAfter, retry.Transient(err))
	default:
		return retry.Transient(err) // whatever the lists of the policy say of its type
	}
}

// retries tells what the lists of a policy say of a type of errors.
func retries(policy config.Policy, errorType string) bool {
	has := func(list []config.ErrorMatch) bool {
		for _, m := range list {
			if name, err := m.MarshalText(); err == nil && string(name) == errorType {
				return true
			}
		}

		return false
	}

	return !has(policy.NeverRetry) && (len(policy.RetryOnly) == 0 || has(policy.RetryOnly))
}

// check finds what is wrong with the flags, and fills in what was left out.
func (o options) check(policy config.Policy, now time.Time) (options, time.Time, error) {
	if o.queue == "" {
		o.queue = o.topic
	}
	attempts := policy.MaxRetries() + 1
	for flag, number := range map[string]int{"--permanent-at": o.permanentAt, "--succeed-at": o.succeedAt} {
		if number < 0 || number > attempts {
			return o, now, cli.Usage("%s: wanted 1 to %d, the number of attempts under the policy of topic %q, found "+
				"%d", flag, attempts, o.topic, number)
		}
	}
	switch {
	case o.topic == "":
		return o, now, cli.Usage("--topic: wanted a name")
	case o.expiration < 0:
		return o, now, cli.Usage("--expiration: wanted 1ms or more, found %s", o.expiration)
	case o.handlerTime < 0:
		return o, now, cli.Usage("--handler-time: wanted 0 or more, found %s", o.handlerTime)
	case o.retryAfter < 0:
		return o, now, cli.Usage("--retry-after: wanted 1ms or more, found %s", o.retryAfter)
	case o.postpone < 0:
		return o, now, cli.Usage("--postpone: wanted 1ms or more, found %s", o.postpone)
	case o.at == "":
		return o, now.UTC().Truncate(time.Second), nil
	}
	at, err := time.Parse(time.RFC3339, o.at)
	if err != nil {
		return o, now, cli.Usage("--at: wanted a time such as 2026-01-31T12:00:00Z, found %q", o.at)
	}

	return o, at.UTC(), nil
}

// text is an action in the words of a table.
func text(v retry.Verdict) string {
	switch v.Action {
	case "":
		return "done"
	case retry.ActionRetryNow:
		return "again at once"
	case retry.ActionRetry:
		return fmt.Sprintf("retry %d", v.Count)
	default:
		return v.String()
	}
}
