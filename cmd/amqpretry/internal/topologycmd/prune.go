package topologycmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config/policyfile"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
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

prune does not search for shared retry queues, because other services may use them.
--old-policies FILE adds the queues of the old policies that the new policies do not have, shared
ones included. Then name all topics of all services.

Under the strategy cycle, another delay has another rejected exchange. prune lists and
deletes those to which no queue and no policy of the broker dead-letters any more, before the queues.

With --json: {"deleted": bool, "exchanges": [{"name", "queue", "state", "detail"}], "queues": [{"name",
"queue", "delay", "type", "messages", "state", "detail"}]}; "state" is obsolete (listed), deleted or
kept, "messages" is absent when unknown, and "exchanges" when there are none.

Exit codes: 0 listed, or all deleted; 1 the management API could not be reached; 2 wrong usage; 4 some
queues or exchanges were kept; 130 interrupted (^C), possibly after some were deleted.`,
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
	client, err := p.session.ManagementClient("prune")
	if err != nil {
		return err
	}

	found, err := retire.Find(ctx, client, p.names(), plans(targets)...)
	if err != nil {
		return err
	}
	obsolete := union(found, retire.Obsolete(plans(targets), old...))

	lines, err := p.list(ctx, client, obsolete)
	if err != nil {
		return err
	}
	unused, err := retire.FindExchanges(ctx, client, p.names(), plans(targets)...)
	if err != nil {
		return err
	}
	exchanges := make([]*prunedExchange, len(unused))
	for i, x := range unused {
		exchanges[i] = &prunedExchange{Name: x.Name, Queue: x.Queue, State: string(stateObsolete)}
	}
	if !p.yes {
		return p.report(exchanges, lines, false)
	}

	for i, x := range unused { // before the queues to which they lead
		exchanges[i].State = stateDeleted
		if err := retire.DeleteExchange(ctx, client, x); err != nil {
			exchanges[i].State, exchanges[i].Detail = stateKept, err.Error()
		}
		p.session.Note("%s: %s", x.Name, exchanges[i].State)
	}

	return p.retire(ctx, client, obsolete, exchanges, lines)
}

// prunedExchange is one rejected exchange of a report.
type prunedExchange struct {
	Name   string `json:"name"`
	Queue  string `json:"queue"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
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
func union(all, more []retire.Queue) []retire.Queue {
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

// list says of each obsolete queue what the broker knows. What old policies had and the broker has
// not is left out.
func (p *prune) list(ctx context.Context, client *httpapi.Client, obsolete []retire.Queue) (lines []*pruned,
	err error) {
	for _, q := range obsolete {
		line := &pruned{Name: q.Name, Delay: delayText(q.Queue), State: string(stateObsolete)}
		line.Queue, _ = q.Arguments["x-dead-letter-routing-key"].(string)
		line.Type, _ = q.Arguments[amqp091.QueueTypeArg].(string)
		found, err := client.Queue(ctx, q.Name)
		switch {
		case httpapi.NotFound(err):
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
func (p *prune) retire(ctx context.Context, client *httpapi.Client, obsolete []retire.Queue,
	exchanges []*prunedExchange, lines []*pruned) error {
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
			if err := retire.Delete(ctx, client, q); err != nil {
				lines[i].State, lines[i].Detail = stateKept, keptText(ctx, err)
				note("%s: kept: %s", q.Name, lines[i].Detail)

				return
			}
			lines[i].State, lines[i].Messages = stateDeleted, nil
			note("%s: deleted", q.Name)
		}()
	}
	wg.Wait()

	if err := p.report(exchanges, lines, true); err != nil && !errors.Is(err, cli.ErrNobodyReads) {
		// the exit code is asked for as well
		return err
	}
	kept := slices.ContainsFunc(lines, func(l *pruned) bool { return l.State == stateKept }) ||
		slices.ContainsFunc(exchanges, func(x *prunedExchange) bool { return x.State == stateKept })
	if kept {
		if ctx.Err() != nil {
			return cli.Interrupted("interrupted: run the command again to delete the rest")
		}
		return &cli.ExitError{Code: cli.ExitIncomplete}
	}

	return nil
}

func keptText(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return "interrupted: the queue is unbound, unless an instance with the old policy has bound it again"
	}

	return err.Error()
}

func (p *prune) report(exchanges []*prunedExchange, lines []*pruned, deleted bool) error {
	if p.session.JSON {
		if lines == nil {
			lines = []*pruned{}
		}

		return p.session.PrintJSON(struct {
			Deleted   bool              `json:"deleted"`
			Exchanges []*prunedExchange `json:"exchanges,omitempty"`
			Queues    []*pruned         `json:"queues"`
		}{deleted, exchanges, lines})
	}
	if len(lines)+len(exchanges) == 0 {
		_, err := fmt.Fprintln(p.session.Out, "No obsolete retry queues.")
		return err
	}
	if err := p.printExchanges(exchanges, len(lines) > 0); err != nil {
		return err
	}
	if err := p.printQueues(lines); err != nil {
		return err
	}
	if !deleted {
		_, err := fmt.Fprintln(p.session.Out, "\nNothing was deleted. --yes deletes each queue after it is proven "+
			"empty.")
		return err
	}

	return nil
}

func (p *prune) printExchanges(exchanges []*prunedExchange, more bool) error {
	if len(exchanges) == 0 {
		return nil
	}
	rows := make([][]string, len(exchanges))
	for i, x := range exchanges {
		rows[i] = []string{x.State, x.Name, x.Queue, x.Detail}
	}
	err := p.session.Table([]string{"state", "rejected exchange", "main queue", "detail"}, rows)
	if err == nil && more {
		_, err = fmt.Fprintln(p.session.Out)
	}

	return err
}

func (p *prune) printQueues(lines []*pruned) error {
	if len(lines) == 0 {
		return nil
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

	return p.session.Table([]string{"state", "retry queue", "main queue", "delay", "type", "messages", "detail"}, rows)
}
