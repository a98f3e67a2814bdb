package topologycmd

import (
	"context"
	"slices"
	"strconv"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
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
	topics, err := p.topics(args)
	if err != nil {
		return err
	}
	old, err := p.oldPlans(topics)
	if err != nil {
		return err
	}
	client, err := p.session.ManagementClient("prune")
	if err != nil {
		return err
	}

	found, err := retire.Find(ctx, client, p.names(), inspect.Plans(topics)...)
	if err != nil {
		return err
	}
	for _, q := range retire.Obsolete(inspect.Plans(topics), old...) {
		if !slices.ContainsFunc(found.Queues, func(f retire.Queue) bool { return f.Name == q.Name }) {
			found.Queues = append(found.Queues, q)
		}
	}
	r, err := listed(ctx, client, found)
	if err != nil {
		return err
	}
	if !p.yes {
		return r.print(p.session)
	}

	for i, x := range found.Exchanges { // before the queues to which they lead
		r.Exchanges[i].State = stateDeleted
		if err := retire.DeleteExchange(ctx, client, x); err != nil {
			r.Exchanges[i].State, r.Exchanges[i].Detail = stateKept, err.Error()
		}
		p.session.Note("%s: %s", x.Name, r.Exchanges[i].State)
	}

	return p.retire(ctx, client, found.Queues, r)
}

// oldPlans are those of the policies of before, for the same main queues.
func (p *prune) oldPlans(topics []inspect.Topic) ([]topology.Plan, error) {
	if p.oldPolicies == "" {
		return nil, nil
	}
	policies, err := policyfile.Load(p.oldPolicies)
	if err != nil {
		return nil, err
	}
	given := make([]cli.Target, len(topics))
	for i, t := range topics {
		given[i] = cli.Target{Topic: t.Name, Queue: t.Plan.Queue}
	}
	old, err := p.planned(given, policies)

	return inspect.Plans(old), err
}

// pruned is what is obsolete, and what has become of it.
type pruned struct {
	Deleted   bool             `json:"deleted"`
	Exchanges []prunedExchange `json:"exchanges,omitempty"`
	Queues    []prunedQueue    `json:"queues"`
}

// prunedExchange is one rejected exchange.
type prunedExchange struct {
	Name   string        `json:"name"`
	Queue  string        `json:"queue"`
	State  inspect.State `json:"state"`
	Detail string        `json:"detail,omitempty"`
}

// prunedQueue is one retry queue.
type prunedQueue struct {
	Name string `json:"name"`
	// Queue is the main queue to which messages go back; empty for shared ones.
	Queue    string        `json:"queue,omitempty"`
	Delay    string        `json:"delay"`
	Type     string        `json:"type"`
	Messages *int64        `json:"messages,omitempty"`
	State    inspect.State `json:"state"`
	Detail   string        `json:"detail,omitempty"`
}

const (
	stateDeleted inspect.State = "deleted"
	stateKept    inspect.State = "kept"
)

// listed says of everything obsolete what the broker knows.
func listed(ctx context.Context, client *httpapi.Client, found retire.Found) (pruned, error) {
	r := pruned{Queues: []prunedQueue{}}
	for _, x := range found.Exchanges {
		r.Exchanges = append(r.Exchanges, prunedExchange{Name: x.Name, Queue: x.Queue, State: inspect.Obsolete})
	}
	for _, q := range found.Queues {
		line := prunedQueue{Name: q.Name, Delay: delayText(q.Queue), State: inspect.Obsolete}
		line.Queue, _ = q.Arguments["x-dead-letter-routing-key"].(string)
		line.Type, _ = q.Arguments[amqp091.QueueTypeArg].(string)
		found, err := client.Queue(ctx, q.Name)
		switch {
		case httpapi.NotFound(err): // old policies had it
			line.State, line.Detail = stateDeleted, "it is not there"
		case err != nil:
			return r, err
		default:
			line.Messages = found.Messages
		}
		r.Queues = append(r.Queues, line)
	}

	return r, nil
}

// retire deletes all of them that are there.
func (p *prune) retire(ctx context.Context, client *httpapi.Client, obsolete []retire.Queue, r pruned) error {
	var there []retire.Queue
	var lines []*prunedQueue
	for i, q := range obsolete {
		if line := &r.Queues[i]; line.State != stateDeleted {
			there, lines = append(there, q), append(lines, line)
		}
	}
	retire.DeleteAll(ctx, client, there, func(i int) {
		p.session.Note("%s: waiting until it is proven empty, 20s or more", there[i].Name)
	}, func(i int, err error) {
		line := lines[i]
		if err != nil {
			line.State, line.Detail = stateKept, keptText(ctx, err)
			p.session.Note("%s: kept: %s", line.Name, line.Detail)
			return
		}
		line.State, line.Messages = stateDeleted, nil
		p.session.Note("%s: deleted", line.Name)
	})

	r.Deleted = true
	if err := cli.Read(r.print(p.session)); err != nil {
		return err
	}
	kept := slices.ContainsFunc(r.Queues, func(l prunedQueue) bool { return l.State == stateKept }) ||
		slices.ContainsFunc(r.Exchanges, func(x prunedExchange) bool { return x.State == stateKept })
	switch {
	case kept && ctx.Err() != nil:
		return cli.Interrupted("interrupted: run the command again to delete the rest")
	case kept:
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

func (r pruned) print(s *cli.Session) error {
	if s.JSON {
		return s.PrintJSON(r)
	}
	p := s.Printer()
	if len(r.Queues)+len(r.Exchanges) == 0 {
		p.Line("No obsolete retry queues.")
		return p.Err()
	}
	var exchanges, queues [][]string
	for _, x := range r.Exchanges {
		exchanges = append(exchanges, []string{string(x.State), x.Name, x.Queue, x.Detail})
	}
	for _, l := range r.Queues {
		messages := "?"
		switch {
		case l.Messages != nil:
			messages = strconv.FormatInt(*l.Messages, 10)
		case l.State == stateDeleted:
			messages = ""
		}
		queues = append(queues, []string{string(l.State), l.Name, l.Queue, l.Delay, l.Type, messages, l.Detail})
	}
	if exchanges != nil {
		p.Table([]string{"state", "rejected exchange", "main queue", "detail"}, exchanges)
	}
	if exchanges != nil && queues != nil {
		p.Line("")
	}
	if queues != nil {
		p.Table([]string{"state", "retry queue", "main queue", "delay", "type", "messages", "detail"}, queues)
	}
	if !r.Deleted {
		p.Line("\nNothing was deleted. --yes deletes each queue after it is proven empty.")
	}

	return p.Err()
}
