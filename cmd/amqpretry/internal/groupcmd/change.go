package groupcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

const changeHelp = `

Without --yes, the command prints its steps. On a terminal it then asks for confirmation. You can
interrupt it at any moment, or it can be killed: run it again to continue. It waits as long as
instances of %[1]s consume.

Messages with exact delays and those in shared retry queues wait in queues of all services, where the
command cannot count them. So it waits %[2]s. --wait sets another time.

A queue is deleted after newer statistics of the broker have proven that it is empty, as "topology
prune" does. A queue with messages, consumers or foreign bindings is never deleted.

With --json: {"group", "to", "done": bool, "steps": [{"topic", "action", "object", "state", "detail"}]};
"state" is planned, done or kept.

Exit codes: 0 listed, or all done; 1 failed, run the command again; 2 wrong usage; 4 something was kept;
130 interrupted (^C), possibly after a part was done.`

func (g *groups) renameCommand() *cobra.Command {
	c := &change{groups: g}
	cmd := &cobra.Command{
		Use:   "rename OLD NEW --topics TOPIC[,TOPIC...]",
		Short: "Rename a consumer group while its services run",
		Long: `Rename a consumer group while its services run. Start the command, wait until it asks for the deployment,
and then deploy the services with the new name. For each topic, the command does these steps:

1. Declare the queue of the new group with the arguments of the old one, and its retry queues and
   dead-letter queue, by the policy file.
2. Bind the new queue as the old one, and then unbind the old queue, binding by binding. A message that
   is published between these two requests goes to both queues.
3. Wait until no instance consumes the old queue. An old instance that starts or reconnects binds it
   again: the command undoes that within about a second.
4. Move the messages of the old queue to the new one, also those that come back from its retry queues.
   They keep their attempts. Messages that wait for a retry wait once more, for the shortest delay.
5. Move the dead letters to the new dead-letter queue. A replay sends them to the new queue.
6. Delete the old queues.

No message is lost. Messages can be duplicated: those published while both queues are bound, and up to
64 messages that are being moved if the command is killed.` + fmt.Sprintf(changeHelp, "OLD",
			"for the longest delay of the policies after\nthe last consumer has ended"),
		Example: `  amqpretry group rename billing invoicing --topics orders --policies retry.yaml
  amqpretry group rename billing invoicing --topics orders,refunds --policies retry.yaml --yes`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.from, c.to = args[0], args[1]
			return c.run(cmd)
		},
	}

	return c.flags(cmd)
}

func (g *groups) removeCommand() *cobra.Command {
	c := &change{groups: g}
	cmd := &cobra.Command{
		Use:   "remove GROUP --topics TOPIC[,TOPIC...]",
		Short: "Remove a consumer group after its messages are handled",
		Long: `Remove a consumer group after its messages are handled. For each topic, the command does these steps:

1. Unbind the queue, so that it gets no new messages.
2. Wait until the instances of the group have handled its messages, also those in retry queues, and ask
   you to stop the instances. If messages are left and nobody consumes them, the command ends with 4.
3. Delete the queues. If there are dead letters, nothing of the topic is deleted: replay them, or run
   "amqpretry dlq purge", which writes them to a file.` + fmt.Sprintf(changeHelp, "GROUP",
			"for the sum of the delays of the policies\nafter it has last seen messages of the group"),
		Example: `  amqpretry group remove billing --topics orders
  amqpretry group remove billing --topics orders,refunds --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.from = args[0]
			return c.run(cmd)
		},
	}

	return c.flags(cmd)
}

// change is one run: it renames a group, or removes it.
type change struct {
	*groups
	topics   []string
	yes      bool
	wait     time.Duration
	from, to string // to is empty for a removal

	client     *httpapi.Client
	mu         sync.Mutex // of broker, while queues are deleted
	broker     *inspect.Broker
	connection *amqp091.Connection // of the broker
	parts      []*part
}

// part is what is done for one topic.
type part struct {
	topic, queue, to string        // the main queues
	plan             topology.Plan // of the new queue
	policy           config.Policy
	held             held // when the command began
	steps            []*step
	kept             bool  // something of it: nothing more is deleted
	unacked          int64 // of the old queue, some seconds ago: instances that end still handle them
}

// step is one of a change.
type step struct {
	Topic  string        `json:"topic"`
	Action action        `json:"action"`
	Object string        `json:"object"`
	State  inspect.State `json:"state"`
	Detail string        `json:"detail,omitempty"`
}

type action string

const (
	declares action = "declare"
	binds    action = "bind"
	unbinds  action = "unbind"
	moves    action = "move"
	drains   action = "drain"
	deletes  action = "delete"

	stateDone inspect.State = "done"
	stateKept inspect.State = "kept"
)

func (c *change) flags(cmd *cobra.Command) *cobra.Command {
	c.session.PoliciesFlag(cmd)
	cmd.Flags().StringSliceVar(&c.topics, "topics", nil, "`topics` of the group, separated by commas")
	cmd.Flags().DurationVar(&c.wait, "wait", -1, "time in which messages may come back from queues of all services "+
		"(default: by the policies)")
	cmd.Flags().BoolVar(&c.yes, "yes", false, "run without asking for confirmation")
	cmd.Flags().Lookup("wait").DefValue = "0s" // the help leaves it out
	_ = cmd.MarkFlagRequired("topics")         // it fails for flags that are not there

	return cmd
}

func (c *change) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	if err := errors.Join(c.check(), checkNames(append(c.topics, cmd.Flags().Args()...)...)); err != nil {
		return err
	}
	if len(c.topics) == 0 {
		return cli.Usage("--topics: found none: wanted the topics of group %q; is a variable not set?", c.from)
	}
	for i, topic := range c.topics {
		if slices.Contains(c.topics[:i], topic) {
			return cli.Usage("--topics: found %q twice: wanted each topic once", topic)
		}
	}
	if c.from == c.to {
		return cli.Usage("the old and the new name are the same: %q", c.to)
	}
	if c.client, err = c.session.ManagementClient("group"); err != nil {
		return err
	}
	if err := c.plan(ctx); err != nil {
		return err
	}
	if !c.yes {
		if err := cli.Read(c.print(false)); err != nil || c.steps() == nil {
			return err
		}
		if c.session.JSON || !c.session.InIsTerminal {
			c.session.Warn("This was a dry run: nothing was changed. --yes does it.")
			return nil
		}
		if err := c.session.Confirm(fmt.Sprintf("%s group %s?", strings.ToUpper(cmd.Name()[:1])+cmd.Name()[1:], c.from),
			false); err != nil {
			return err
		}
	}
	err = c.apply(ctx)
	if ctx.Err() != nil {
		return cli.Interrupted("interrupted: run the same command again to continue")
	}
	var partly *cli.ExitError
	if err != nil && !errors.As(err, &partly) {
		return fmt.Errorf("cannot %s group %q: %w; run the same command again to continue", cmd.Name(), c.from, err)
	}
	if err := cli.Read(c.print(true)); err != nil {
		return err
	}
	if err == nil && slices.ContainsFunc(c.parts, func(p *part) bool { return p.kept }) {
		err = &cli.ExitError{Code: cli.ExitIncomplete}
	}

	return err
}

// plan finds what there is, and what to do with it.
func (c *change) plan(ctx context.Context) error {
	policies, err := c.session.Policies()
	if err != nil {
		return err
	}
	for _, topic := range c.topics {
		p := &part{topic: topic, queue: c.queue(topic, c.from), policy: policies.For(topic).WithDefaults()}
		if c.to != "" {
			p.to = c.queue(topic, c.to)
			if p.plan, err = topology.New(p.to, p.policy, c.names()); err != nil {
				return cli.Usage("%w", err)
			}
		}
		h, err := c.held(ctx, p)
		if err != nil {
			return err
		}
		if x, group := c.owner(p, h); group != "" {
			return cli.Usage("queue %q is bound to exchange %q and not to %q: it is that of group %q; check --topics",
				p.queue, x, p.topic, group)
		}
		if !h.any() && !h.new && c.to != "" {
			return cli.Usage("group %q has no queue %q: check --topics and --group-queue", c.from, p.queue)
		}
		c.parts = append(c.parts, p.planned(h))
	}

	return nil
}

// owner tells whose queue it is, if the names of another topic and group make the same name, and
// only the exchange of that topic is bound: orders_a_b is that of group b for orders_a, or that of
// group a_b for orders.
func (c *change) owner(p *part, h held) (exchange, group string) {
	for _, b := range h.bindings {
		if b.Exchange == p.topic {
			return "", ""
		}
		if found, ok := c.groupOf(b.Exchange, p.queue); ok {
			exchange, group = b.Exchange, found
		}
	}

	return exchange, group
}

// planned has the steps for what there is.
func (p *part) planned(h held) *part {
	p.held = h
	add := func(action action, object, detail string, there bool) {
		if there {
			p.steps = append(p.steps, &step{p.topic, action, object, inspect.Planned, detail})
		}
	}
	rename := p.to != ""
	add(declares, p.to, "with its retry queues and its dead-letter queue", rename && h.main != nil)
	for _, b := range h.bindings {
		add(binds, p.to, "to exchange "+b.Exchange, rename)
		add(unbinds, p.queue, "from exchange "+b.Exchange, true)
	}
	if h.main != nil {
		detail := fmt.Sprintf("messages %s, waiting %s, consumers %s", number(h.counts.Messages),
			number(sum(h.sources)), number(h.counts.Consumers))
		if policy := h.counts.Policy; policy != nil && *policy != "" && rename {
			detail += fmt.Sprintf("; the broker's policy %q applies to it: check that one applies to %s", *policy, p.to)
		}
		add(moves, p.queue, detail+", to "+p.to, rename)
		add(drains, p.queue, detail, !rename)
	}
	if h.dead != nil {
		add(moves, h.dead.Name, "messages "+number(h.deadLetters)+", to "+p.plan.DeadLetterQueue, rename)
	}
	for _, q := range h.whole() {
		add(deletes, q.Name, "", true)
	}
	for _, x := range h.exchanges {
		add(deletes, x, "exchange", true)
	}

	return p
}

func (c *change) steps() (all []*step) {
	for _, p := range c.parts {
		all = append(all, p.steps...)
	}

	return all
}

// mark notes how a step has ended, and tells whether it is done.
func (p *part) mark(action action, object string, err error) (done bool) {
	at := slices.IndexFunc(p.steps, func(s *step) bool { return s.Action == action && s.Object == object })
	if at < 0 { // it was not there before
		at = len(p.steps)
		p.steps = append(p.steps, &step{Topic: p.topic, Action: action, Object: object})
	}
	s := p.steps[at]
	s.State = stateDone
	switch {
	case err != nil:
		s.State, s.Detail, p.kept = stateKept, err.Error(), true
	case action == drains:
		s.Detail = "" // how many messages there were before
	}

	return err == nil
}

func (c *change) print(done bool) error {
	steps := c.steps()
	for _, s := range steps {
		if done && s.State == inspect.Planned {
			s.State = stateKept
		}
	}
	if c.session.JSON {
		return c.session.PrintJSON(struct {
			Group string  `json:"group"`
			To    string  `json:"to,omitempty"`
			Done  bool    `json:"done"`
			Steps []*step `json:"steps"`
		}{c.from, c.to, done, append([]*step{}, steps...)})
	}
	if len(steps) == 0 {
		p := c.session.Printer()
		p.Line("Nothing is left of group %s.", cli.Safe(c.from))
		return p.Err()
	}
	var rows [][]string
	for _, s := range steps {
		rows = append(rows, []string{string(s.State), s.Topic, string(s.Action), s.Object, s.Detail})
	}

	return c.session.Table([]string{"state", "topic", "action", "object", "detail"}, rows)
}

// held is what a group has for a topic.
type held struct {
	new                 bool // the queue of the new group is there
	main, landing, dead *retire.Queue
	retries             []retire.Queue
	rejected            []retire.Exchange
	exchanges           []string
	bindings            []httpapi.Binding // that bring new messages
	sources             []counted         // from which messages go to the main queue by its name
	returns             bool              // messages come back from shared retry queues
	counts              httpapi.Queue     // of the main queue
	deadLetters         *int64
}

func (h held) any() bool { return len(h.whole())+len(h.exchanges) > 0 }

// whole lists the queues in the order in which they are deleted.
func (h held) whole() (all []retire.Queue) {
	all = slices.Clone(h.retries)
	for _, q := range []*retire.Queue{h.landing, h.main, h.dead} {
		if q != nil {
			all = append(all, *q)
		}
	}

	return all
}

// foreign is a queue that is not of this library, from which messages go to the main queue; empty
// if there is none.
func (h held) foreign() string {
	for _, s := range h.sources {
		if !slices.ContainsFunc(h.whole(), func(q retire.Queue) bool { return q.Name == s.Queue }) {
			return s.Queue
		}
	}

	return ""
}

// cycles tells whether the main queue dead-letters by a rejected exchange, which must go before the
// retry queues.
func (h held) cycles(queue string) bool {
	exchange, _ := h.counts.InForce()["x-dead-letter-exchange"].(string)

	return strings.HasPrefix(exchange, queue+".rejected.")
}

// held asks the management API.
func (c *change) held(ctx context.Context, p *part) (h held, err error) {
	names := c.names()
	none, err := topology.New(p.queue, config.Policy{Mode: config.ModeOff}, names)
	if err != nil {
		return h, cli.Usage("%w", err)
	}
	found, err := retire.Find(ctx, c.client, names, none)
	if err != nil {
		return h, err
	}
	h.retries, h.rejected = found.Queues, found.Exchanges
	queues, err := c.client.Counts(ctx)
	if err != nil {
		return h, err
	}
	h.sources = waiting(queues, p.queue)
	landing, dead := names.Landing(topology.Target{Key: p.queue}), names.DeadLetterQueue(p.queue)
	for _, q := range queues {
		whole := &retire.Queue{Queue: topology.Queue{Name: q.Name, Arguments: amqp091.Table(q.Arguments)}, Whole: true}
		switch q.Name {
		case p.to:
			h.new = true
		case p.queue:
			h.main = whole
		case landing:
			h.landing = whole
		case dead:
			h.dead, h.deadLetters = whole, q.Messages
		}
	}
	if err := c.bindings(ctx, p, &h); err != nil {
		return h, err
	}
	exchanges, err := c.client.Exchanges(ctx)
	for _, x := range exchanges {
		if retry := names.RetryExchange(p.queue); x.Name == retry || x.Name == retry+".classic" {
			h.exchanges = append(h.exchanges, x.Name)
		}
	}

	return h, err
}

// bindings finds what routes to the queues of a group.
func (c *change) bindings(ctx context.Context, p *part, h *held) error {
	if h.main != nil {
		if err := c.mainBindings(ctx, p, h); httpapi.NotFound(err) { // deleted since it was listed
			h.main = nil
		} else if err != nil {
			return err
		}
	}
	for _, q := range []*retire.Queue{h.landing, h.dead} {
		if q == nil {
			continue
		}
		all, err := c.client.Bindings(ctx, q.Name)
		if err != nil {
			return err
		}
		for _, b := range all {
			switch {
			case retire.IsMark(b), !c.isOwn(p, b.Exchange):
			case q.RetryExchange == "":
				q.RetryExchange = b.Exchange
			default:
				q.Others = append(q.Others, b.Exchange)
			}
		}
	}

	return nil
}

func (c *change) mainBindings(ctx context.Context, p *part, h *held) (err error) {
	if h.counts, err = c.client.Queue(ctx, p.queue); err != nil {
		return err
	}
	if h.counts.State == "down" {
		return fmt.Errorf("queue %q is down: start its nodes", p.queue)
	}
	all, err := c.client.Bindings(ctx, p.queue)
	for _, b := range all {
		switch {
		case b.Exchange == cmp.Or(c.shared, "retry")+".return":
			h.returns, h.main.RetryExchange = true, b.Exchange
		case !retire.IsMark(b):
			h.bindings = append(h.bindings, b)
		}
	}

	return err
}

// isOwn tells an exchange through which this library routes to the dead-letter queue or the landing
// queue.
func (c *change) isOwn(p *part, exchange string) bool {
	retry := c.names().RetryExchange(p.queue)
	ladder, delivers := strings.CutSuffix(exchange, ".delivery")
	_, err := topology.ParseLadderName(ladder)

	return exchange == retry || exchange == retry+".classic" || delivers && err == nil
}
