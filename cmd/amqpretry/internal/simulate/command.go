// Package simulate is the command simulate: the life of one failing message under a policy, without a broker.
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
	at                      string
	headers                 bool
}

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Show what a policy does to a message that fails, without a broker",
		Long: `Play the life of one message whose handler fails again and again: when each attempt is, in which
queue it lies meanwhile, for how long, which headers it carries, and where it ends. No broker is
asked and nothing is waited for.

It is not a second implementation: the message goes through the retry middleware itself, and its
headers are written by the code that writes them on a broker. Times are those of an idle broker and,
without --handler-time, of a handler that takes no time: a wait is a minimum. With a policy that has
jitter, times are the shortest and the longest.

The error is one that the policy retries, whatever its lists retry_only and never_retry say. With
--error-type NAME (as %T prints it, such as *fs.PathError) it is of this type, and the lists count.

With --json: {"topic", "queue", "mode", "steps": [{"after_ms", "shortest_after_ms", "attempt",
"attempts", "try", "outcome", "error", "verdict", "queue", "wait_ms", "shortest_wait_ms",
"headers"}], "end", "reason", "calls", "total_ms", "shortest_total_ms"}, where an end is succeeded,
dead-lettered, dropped, or endless under the mode off.

Exit codes: 0 played, whatever the end; 1 the policy file cannot be used; 2 usage.`,
		Example: `  amqpretry simulate
  amqpretry simulate --policies retry.yaml --topic orders --headers
  amqpretry simulate --policies retry.yaml --topic orders --succeed-at 3
  amqpretry simulate --policies retry.yaml --topic orders --error "no such customer" --error-type '*orders.UnknownError' --json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return run(s, o) },
	}
	s.PoliciesFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.topic, "topic", "orders", "topic whose policy holds")
	flags.StringVar(&o.queue, "queue", "", "main queue (default: named as the topic)")
	flags.StringVar(&o.shared, "shared-name", "", "what the names of shared retry queues begin with: Names.Shared of "+
		"the services (default retry)")
	flags.StringVar(&o.errorText, "error", "simulated error", "text of the handler's error")
	flags.StringVar(&o.errorType, "error-type", "", "type of the handler's error, for the policy's lists of errors")
	flags.IntVar(&o.permanentAt, "permanent-at", 0, "number of the attempt whose error is permanent, 1 for the first")
	flags.IntVar(&o.succeedAt, "succeed-at", 0, "number of the attempt at which the handler succeeds, 1 for the first")
	flags.DurationVar(&o.expiration, "expiration", 0, "expiration that the message is published with, such as 5m")
	flags.DurationVar(&o.handlerTime, "handler-time", 0, "how long each call of the handler takes, such as 200ms")
	flags.StringVar(&o.at, "at", "", "time of the first delivery, such as 2026-01-31T12:00:00Z (default: now)")
	flags.BoolVar(&o.headers, "headers", false, "print the headers at each step")

	return cmd
}
