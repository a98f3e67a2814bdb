package topologycmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config/policyfile"
	"github.com/amqpretry/watermill-retry/internal/management"
)

// prune is one run.
type prune struct {
	*topologies
	yes         bool
	oldPolicies string
}

func (c *topologies) pruneCommand() *cobra.Command {
	p := &prune{topologies: c}
	cmd := &cobra.Command{
		Use:   "prune QUEUE|TOPIC=QUEUE...",
		Short: "Delete retry queues whose delays no policy has any more, once they are certainly empty",
		Long: `Find the retry queues of main queues that their policies do not use any more, and delete those that
are certainly empty. Without --yes nothing is deleted: they are listed. It takes the management API,
as AMQP neither lists queues nor tells whether one is really empty.

A queue is first unbound, so that nobody routes into it, then it is waited for until what waits in
it has gone back to its main queue and statistics that are certainly younger say that it is empty,
and then it is deleted: some 20 seconds, and up to its delay and 4 minutes. All queues are waited
for at the same time. An instance with the old policy that uses a queue meanwhile binds it again,
and the queue stays. So does one with a consumer, a foreign binding, or another queue of the name.
It can be interrupted, and repeated.

The policies must be those of all that consume these main queues. End instances with old policies
before.

Queues of the scope "shared" are not found by looking, as services that were not named may use them.
With --old-policies FILE, what the old policies have and the new ones have not is added to the list,
shared ones as well: name all topics of all services then.

With --json: {"deleted": bool, "queues": [{"name", "queue", "delay", "type", "messages", "state",
"detail"}]}, where a state is obsolete (listed), deleted or kept, and messages is there when the
broker has said a number.

Exit codes: 0 listed, or all are deleted; 4 some were kept; 1 the API could not be asked; 2 usage.`,
		Example: `  amqpretry topology prune --policies retry.yaml orders
  amqpretry topology prune --policies retry.yaml --yes orders events=events_billing
  amqpretry topology prune --policies new.yaml --old-policies old.yaml orders`,
		RunE: func(cmd *cobra.Command, args []string) error { return p.run(cmd.Context(), args) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&p.yes, "yes", false, "delete them")
	flags.StringVar(&p.oldPolicies, "old-policies", "", "policy `file` of before, whose retry queues are looked for "+
		"as well")
	_ = cmd.MarkFlagFilename("old-policies", "yaml", "yml", "json")

	return cmd
}

func (p *prune) run(ctx context.Context, args []string) error {
	targets, err := p.targets(args)
	if err != nil {
		return err
	}
	old, err := p.oldPlans(targets)
	if err != nil {
		return err
	}
	api, ok, err := p.session.Management()
	if err != nil {
		return err
	}
	if !ok {
		return cli.Usage("no management API was given, which alone tells what a queue still holds: set %s, or "+
			"--management-url",
			cli.EnvManagement)
	}

	found, err := api.Obsolete(ctx, p.names(), plans(targets)...)
	if err != nil {
		return err
	}
	obsolete := union(found, topology.Obsolete(plans(targets), old...))

	lines, err := p.list(ctx, api, obsolete)
	if err != nil {
		return err
	}
	if !p.yes {
		return p.report(lines, false)
	}

	return p.retire(ctx, api, obsolete, lines)
}

// oldPlans are those of the policies of before, for the same main queues.
func (p *prune) oldPlans(targets []target) ([]topology.Plan, error) {
	if p.oldPolicies == "" {
		return nil, nil
	}
	policies, err := policyfile.Load(p.oldPolicies)
	if err != nil {
		return nil, err
	}
	given := make([]cli.Target, len(targets))
	for i, t := range targets {
		given[i] = t.Target
	}
	old, err := plansOf(given, policies, p.names())

	return plans(old), err
}

// union has each queue once.
func union(all, more []topology.ObsoleteQueue) []topology.ObsoleteQueue {
	known := map[string]bool{}
	for _, q := range all {
		known[q.Name] = true
	}
	for _, q := range more {
		if !known[q.Name] {
			all = append(all, q)
		}
	}

	return all
}

// pruned is one queue of a report.
type pruned struct {
	Name string `json:"name"`
	// Queue is the main queue to which messages go back; empty for shared ones.
	Queue    string `json:"queue,omitempty"`
	Delay    string `json:"delay"`
	Type     string `json:"type"`
	Messages *int64 `json:"messages,omitempty"`
	State    string `json:"state"`
	Detail   string `json:"detail,omitempty"`
}

const (
	stateDeleted = "deleted"
	stateKept    = "kept"
)

// list says of each obsolete queue what the broker knows. What old policies had and the broker has not is left out.
func (p *prune) list(ctx context.Context, api topology.Management, obsolete []topology.ObsoleteQueue) (lines []*pruned,
	err error) {
	client, err := management.New(api.URL, cmp.Or(api.VHost, "/"), api.HTTPClient)
	if err != nil {
		return nil, err
	}
	for _, q := range obsolete {
		line := &pruned{Name: q.Name, Delay: delayText(q.Queue), State: string(stateObsolete)}
		line.Queue, _ = q.Arguments["x-dead-letter-routing-key"].(string)
		line.Type, _ = q.Arguments[amqp091.QueueTypeArg].(string)
		found, err := client.Queue(ctx, q.Name)
		switch {
		case management.NotFound(err):
			line.State, line.Detail = stateDeleted, "it is not there"
		case err != nil:
			return nil, err
		default:
			line.Messages = found.Messages
		}
		lines = append(lines, line)
	}

	return lines, nil
}

// retire deletes all of them at the same time, as each waits for its own messages and statistics.
func (p *prune) retire(ctx context.Context, api topology.Management, obsolete []topology.ObsoleteQueue,
	lines []*pruned) error {
	var wg sync.WaitGroup
	var mu sync.Mutex // of Note
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		p.session.Note(format, args...)
	}
	turns := make(chan struct{}, 16) // requests of each come every second
	for i, q := range obsolete {
		if lines[i].State == stateDeleted {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			turns <- struct{}{}
			defer func() { <-turns }()

			note("%s: waiting until it is certainly empty, 20s or more", q.Name)
			if err := api.Retire(ctx, q); err != nil {
				lines[i].State, lines[i].Detail = stateKept, keptText(ctx, err)
				note("%s: kept: %s", q.Name, lines[i].Detail)

				return
			}
			lines[i].State, lines[i].Messages = stateDeleted, nil
			note("%s: deleted", q.Name)
		}()
	}
	wg.Wait()

	if err := p.report(lines, true); err != nil && !errors.Is(err, cli.ErrNobodyReads) {
		// the exit code is asked for as well
		return err
	}
	for _, line := range lines {
		if line.State == stateKept {
			return &cli.ExitError{Code: cli.ExitIncomplete}
		}
	}

	return nil
}

func keptText(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return "interrupted: it is unbound, unless an instance with the old policy has bound it again"
	}

	return err.Error()
}

func (p *prune) report(lines []*pruned, deleted bool) error {
	if p.session.JSON {
		if lines == nil {
			lines = []*pruned{}
		}

		return p.session.PrintJSON(struct {
			Deleted bool      `json:"deleted"`
			Queues  []*pruned `json:"queues"`
		}{deleted, lines})
	}
	if len(lines) == 0 {
		_, err := fmt.Fprintln(p.session.Out, "Nothing is obsolete.")
		return err
	}

	rows := make([][]string, len(lines))
	for i, l := range lines {
		messages := "?"
		switch {
		case l.Messages != nil:
			messages = strconv.FormatInt(*l.Messages, 10)
		case l.State == stateDeleted:
			messages = ""
		}
		rows[i] = []string{l.State, l.Name, l.Queue, l.Delay, l.Type, messages, l.Detail}
	}
	if err := p.session.Table([]string{"state", "retry queue", "main queue", "delay", "type", "messages", "detail"},
		rows); err != nil {
		return err
	}
	if !deleted {
		_, err := fmt.Fprintln(p.session.Out, "\nNothing was deleted: --yes does that, once each is certainly empty.")
		return err
	}

	return nil
}
