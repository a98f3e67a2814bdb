// Package simulate is the command simulate: the life of one failing message under a policy, without
// a broker.
package simulate

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// options are the flags.
type options struct {
	topic, queue, shared    string
	errorText, errorType    string
	permanentAt, succeedAt  int
	expiration, handlerTime time.Duration
	retryAfter, postpone    time.Duration
	at                      string
	headers                 bool
}

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Show the retries of a failing message under a policy, without a broker",
		Long: `Show the life of a message whose handler fails again and again: the time of each attempt, the queue
where the message waits and for how long, its headers, and its end. It needs no broker and does not
wait.

simulate runs the retry middleware itself, and the code that writes headers on a broker. Times are
minimums: they assume an idle broker, and a handler that takes --handler-time (default 0). If the
policy has jitter, the shortest and longest times are printed. With exact delays, the place where a
message waits is the ladder, of which it takes one or more queues.

By default the policy retries the error, whatever retry_only and never_retry say. With --error-type
NAME, the error has that type (as %T prints it, such as *fs.PathError), and the lists apply. With
--retry-after each error asks for that wait (retry.RetryAfter). With --postpone the first call of the
handler asks for that wait, and for no attempt (retry.Postpone).

If the policy has a strategy other than copy, the last column is by whom the message is brought to its
queue: by the broker, or by a copy that the consumer publishes. A message that the broker brings back
carries no headers of the library, so a dead letter has the last error only.

With --json: {"topic", "queue", "mode", "strategy", "steps": [{"after_ms", "shortest_after_ms",
"attempt", "attempts", "try", "outcome", "error", "verdict", "queue", "by", "wait_ms",
"shortest_wait_ms", "headers"}], "end", "reason", "calls", "total_ms", "shortest_total_ms"}; "end" is
succeeded, dead-lettered, dropped, or endless under the mode off, and "by" is broker or copy.

Exit codes: 0 done, whatever the end; 1 the policy file is invalid; 2 wrong usage.`,
		Example: `  amqpretry simulate
  amqpretry simulate --policies retry.yaml --topic orders --headers
  amqpretry simulate --policies retry.yaml --topic orders --succeed-at 3
  amqpretry simulate --policies retry.yaml --topic orders --retry-after 37s
  amqpretry simulate --policies retry.yaml --topic orders --error "no such customer" --error-type '*orders.UnknownError' --json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return run(s, o) },
	}
	s.PoliciesFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.topic, "topic", "orders", "topic, which selects the policy")
	flags.StringVar(&o.queue, "queue", "", "main queue (default: the name of the topic)")
	cli.SharedNameFlag(flags, &o.shared)
	flags.StringVar(&o.errorText, "error", "simulated error", "text of the handler's error")
	flags.StringVar(&o.errorType, "error-type", "", "type of the handler's error, which the policy's lists match")
	flags.IntVar(&o.permanentAt, "permanent-at", 0, "attempt whose error is permanent; 1 is the first")
	flags.IntVar(&o.succeedAt, "succeed-at", 0, "attempt in which the handler succeeds; 1 is the first")
	flags.DurationVar(&o.expiration, "expiration", 0, "expiration of the published message, such as 5m")
	flags.DurationVar(&o.handlerTime, "handler-time", 0, "duration of each handler call, such as 200ms")
	flags.DurationVar(&o.retryAfter, "retry-after", 0, "wait that each error asks for, such as 37s")
	flags.DurationVar(&o.postpone, "postpone", 0, "wait for which the first call postpones the message, such as 37s")
	flags.StringVar(&o.at, "at", "", "time of the first delivery, such as 2026-01-31T12:00:00Z (default: now)")
	flags.BoolVar(&o.headers, "headers", false, "print the headers of each step")

	return cmd
}
