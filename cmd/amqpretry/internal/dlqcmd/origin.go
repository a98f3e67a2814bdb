package dlqcmd

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// theirOrigins stands for the targets of a replay to the queues in which messages failed.
const theirOrigins = "their origins"

func (e *operation) addOrigins(cmd *cobra.Command) {
	p := &e.plan
	cmd.Flags().BoolVar(&p.ToOrigin, "to-origin", false, "send each message to the queue in which it failed, by its "+
		"headers")
	cmd.Flags().StringArrayVar(&p.Origins, "origin", nil, "with --to-origin: `queue` to which messages may go; repeatable")
	cmd.Flags().BoolVar(&e.allOrigins, "all-origins", false,
		"with --to-origin and --yes: all queues that the messages name")
	for _, flag := range []string{"to", "foreign", "canary"} {
		cmd.MarkFlagsMutuallyExclusive(flag, "to-origin")
	}
	cmd.MarkFlagsMutuallyExclusive("origin", "all-origins")
}

func (e *operation) checkOrigins() error {
	switch p := e.plan; {
	case !p.ToOrigin && (len(p.Origins) > 0 || e.allOrigins):
		return cli.Usage("--origin and --all-origins need --to-origin")
	case p.ToOrigin && e.yes && len(p.Origins) == 0 && !e.allOrigins:
		return cli.Usage("--to-origin with --yes: wanted --origin for each queue to which messages may go, or " +
			"--all-origins; without --yes, the command prints the queues")
	default:
		return nil
	}
}

// chooseOrigins lets a run go to the queues that were counted, and to no other one.
func (e *operation) chooseOrigins() {
	if !e.plan.ToOrigin || len(e.plan.Origins) > 0 {
		return
	}
	for _, o := range e.plan.Counted.Origins {
		if o.Messages > 0 {
			e.plan.Origins = append(e.plan.Origins, o.Queue)
		}
	}
}

// printOrigins prints the origins that messages name.
func (t *tool) printOrigins(r dlq.Report, count string) error {
	if len(r.Origins) == 0 {
		return nil
	}
	var rows [][]string
	for _, o := range r.Origins {
		consumers := ""
		if o.Target != nil {
			consumers = units.Thousands(o.Target.Consumers)
		}
		rows = append(rows, []string{o.Queue, units.Thousands(o.Messages), cmp.Or(consumers, "-"),
			cmp.Or(o.Problem, "-")})
	}

	return t.Table([]string{"origin", count, "consumers", "problem"}, rows)
}

// originQuestion is what is asked before messages go to several queues: with all of them.
func (e *operation) originQuestion(n int) string {
	var all []string
	for _, o := range e.plan.Counted.Origins {
		if o.Messages > 0 {
			all = append(all, fmt.Sprintf("%s (%s)", o.Queue, units.Thousands(o.Messages)))
		}
	}

	return fmt.Sprintf("Replay %s to %s?", units.Many(n, "message"), strings.Join(all, ", "))
}
