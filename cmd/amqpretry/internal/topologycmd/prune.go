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
		Short: "Delete retry queues with delays that no policy has, after they are proven empty",
		Long: `List the retry queues that the policies of their main queues do not use, and with --yes delete those
that are proven empty. The command needs the management API: AMQP does not list queues, and does not
show whether a queue is really empty.

For each queue, prune removes the binding, so that no message can enter. It waits until the waiting
messages have returned to their main queue, and until newer statistics of the broker say that the
queue is empty. Then it deletes the queue. This takes about 20 seconds, and at most the delay of the
queue and 4 minutes. It handles all queues at the same time.

A queue stays if it has a consumer or a foreign binding, or if another queue took its name. It stays,
too, if an instance with the old policy uses it meanwhile and binds it again. You can interrupt and
repeat the command.

Pass the policies of all services that consume these main queues, and end instances with old policies
first.

prune does not search for queues of the scope "shared", because other services may use them.
--old-policies FILE adds the queues of the old policies that the new policies do not have, shared
ones included. Then name all topics of all services.

With --json: {"deleted": bool, "queues": [{"name", "queue", "delay", "type", "messages", "state",
"detail"}]}; "state" is obsolete (listed), deleted or kept, and "messages" is absent when unknown.

Exit codes: 0 listed, or all deleted; 1 the management API could not be reached; 2 wrong usage; 4 some
queues were kept.`,
		Example: `  amqpretry topology prune --policies retry.yaml orders
  amqpretry topology prune --policies retry.yaml --yes orders events=events_billing
  amqpretry topology prune --policies new.yaml --old-policies old.yaml orders`,
		RunE: func(cmd *cobra.Command, args []string) error { return p.run(cmd.Context(), args) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&p.yes, "yes", false, "delete the listed queues")
	flags.StringVar(&p.oldPolicies, "old-policies", "", "earlier policy `file`, whose retry queues are checked as "+
		"well")
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
		return cli.Usage("prune needs the management API: set %s, or --management-url",
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

			note("%s: waiting until it is proven empty, 20s or more", q.Name)
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
		return "interrupted: the queue is unbound, unless an instance with the old policy has bound it again"
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
		_, err := fmt.Fprintln(p.session.Out, "No obsolete retry queues.")
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
		_, err := fmt.Fprintln(p.session.Out, "\nNothing was deleted. --yes deletes each queue after it is proven "+
			"empty.")
		return err
	}

	return nil
}
