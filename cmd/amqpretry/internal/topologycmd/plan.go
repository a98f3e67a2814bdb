package topologycmd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config/topology"
)

func (c *topologies) planCommand() *cobra.Command {
	offline := false
	cmd := &cobra.Command{
		Use:   "plan QUEUE|TOPIC=QUEUE...",
		Short: "Compare a topology with the broker, and show what apply would change",
		Long: `Compare the topology of main queues with the broker. Nothing is changed.

Each object has one of these states:
  present   it exists as planned
  missing   apply would create it; a missing main queue is created by its service
  conflict  it exists with another argument; wanted and found are printed. For a main queue: without what
            the strategy of its policy needs, by arguments or by a policy of the broker
  unseen    the command could not check it
  obsolete  a retry queue with a delay that no policy has, or a rejected exchange that nothing uses

AMQP compares arguments only in a declaration. The command declares objects that already exist, which
changes nothing, and needs the permissions of a service that declares. AMQP does not show bindings,
obsolete queues and policies of the broker: use the management API for those.

` + jsonHelp + `

Exit codes: 0 nothing would change; 1 the broker could not be reached; 2 wrong usage; 3 objects are
missing or in conflict.`,
		Example: `  amqpretry topology plan orders
  amqpretry topology plan --policies retry.yaml orders events=events_billing
  amqpretry topology plan --policies retry.yaml --management-url http://localhost:15672 --json orders
  amqpretry topology plan --policies retry.yaml --offline orders`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if offline {
				return c.offline(args)
			}

			return c.check(cmd.Context(), args, func(r *report) bool {
				return len(r.in(inspect.Missing)) > len(r.mains(inspect.Missing)) || r.Summary[inspect.Conflict] > 0
			})
		},
	}
	cmd.Flags().BoolVar(&offline, "offline", false, "print the plan without connecting to a broker")

	return cmd
}

func (c *topologies) verifyCommand() *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "verify QUEUE|TOPIC=QUEUE...",
		Short: "Check that a topology exists on the broker or in files, for monitoring and pipelines",
		Long: `Check that the main queues and their topology exist as planned. Nothing is changed. The output is
that of plan, and a missing main queue is a difference as well.

--against compares files in place of the broker, which the command does not contact. The files are
RabbitMQ definitions, YAML of the Messaging Topology Operator, or the output of 'terraform show -json'
for a plan or a state. All files together are the topology of the virtual host. Objects of others do
not matter. Of main queues the command checks that they are there and durable, and have what their
strategy and "protect" need, by their arguments or by a policy in the files. It reads the patterns of
policies as Go does; the broker has more kinds of them.

Unseen objects are listed, and are no difference: bindings without the management API, and arguments
of objects that the user may not declare. With the management API, only missing permissions leave
objects unseen.

` + jsonHelp + `

Exit codes: 0 everything exists; 1 the broker could not be reached, or a file could not be read;
2 wrong usage; 3 objects are missing or in conflict.`,
		Example: `  amqpretry topology verify --policies retry.yaml orders
  amqpretry topology verify --policies retry.yaml --json orders payments || notify
  amqpretry topology verify --policies retry.yaml --against topology.yaml orders`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(files) > 0 {
				return c.against(args, files)
			}

			return c.check(cmd.Context(), args, differs)
		},
	}
	cmd.Flags().StringArrayVar(&files, "against", nil, "compare a `file` in place of the broker (repeatable)")
	_ = cmd.MarkFlagFilename("against", "yaml", "yml", "json")

	return cmd
}

// differs tells of what verify does not accept.
func differs(r *report) bool { return r.Summary[inspect.Missing]+r.Summary[inspect.Conflict] > 0 }

// check inspects, prints, and ends with 3 if differs says so.
func (c *topologies) check(ctx context.Context, args []string, differs func(*report) bool) error {
	topics, err := c.topics(args)
	if err != nil {
		return err
	}
	b, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer b.Close()

	r, err := c.reportOf(ctx, b, topics)
	if err != nil {
		return err
	}
	if err := cli.Read(r.print(c.session)); err != nil {
		return err
	}
	if differs(&r) {
		return &cli.ExitError{Code: cli.ExitFound}
	}

	return nil
}

// offline prints plans without a broker.
func (c *topologies) offline(args []string) error {
	topics, err := c.topics(args)
	if err != nil {
		return err
	}
	r := planned(topics)
	if c.session.JSON {
		return r.print(c.session)
	}

	p := c.session.Printer()
	for i, t := range topics {
		if i > 0 {
			p.Line("")
		}
		p.Line("%s", safe(t.Plan.String()))
	}
	for _, ladder := range r.Ladders {
		p.Line("\n%s", cli.Safe(ladder.summary()))
	}

	return p.Err()
}

// planned is a report of which nothing was looked at.
func planned(topics []inspect.Topic) report {
	return reported(topics, func(o inspect.Object) object { return line(o).with(inspect.Planned, "") })
}

// applying is one run of apply.
type applying struct {
	*topologies
	recreated, withTargets bool
}

func (c *topologies) applyCommand() *cobra.Command {
	a := &applying{topologies: c}
	cmd := &cobra.Command{
		Use:   "apply QUEUE|TOPIC=QUEUE...",
		Short: "Declare the missing objects of a topology",
		Long: `Declare the retry exchanges, retry queues, dead-letter queues and bindings of main queues, and for
exact delays landing queues and the ladder. Existing objects stay as they are, with their messages, so
the command is repeatable. If any of these objects is in conflict, nothing is declared, and the exit
code is 3.

The command does not declare main queues, which belong to their services, and lists missing ones.
With shared retry queues the main queue must exist, because it is bound. A main queue that lacks what
its strategy needs is in conflict as well. Everything else is declared then, because a change of the
strategy begins with that. The report has the commands that change the main queue, and the exit code
is 4. Only --recreate deletes anything; see also prune.

--recreate deletes a retry queue in conflict after it is proven empty, as prune does, and declares it
as planned. Its waiting messages return to their main queue before that. It never deletes a retry
queue with consumers, a dead-letter queue, a landing queue or anything of a ladder.

--dead-letter-targets completes the main queue's own x-dead-letter-exchange: it declares a missing
exchange (fanout) and a missing queue, and binds an exchange without queues to the dead-letter queue.
It declares the dead-letter queue in any case, under the mode off too.

` + jsonHelp +
			` The states are created and present. A binding that could not be seen is present in either case.

Exit codes: 0 everything exists, but for missing main queues; 1 a declaration failed; 2 wrong usage;
3 nothing was declared: an object is in conflict, or shared retry queues lack their main queue;
4 everything was declared, and a main queue is in conflict.`,
		Example: `  amqpretry topology plan --policies retry.yaml orders
  amqpretry topology apply --policies retry.yaml orders
  amqpretry topology apply --policies retry.yaml --recreate orders`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd.Context(), args) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&a.recreated, "recreate", false,
		"delete retry queues in conflict, and declare them as planned (needs the management API)")
	flags.BoolVar(&a.withTargets, "dead-letter-targets", false,
		"declare the targets of the main queues' own dead-lettering (needs the management API)")

	return cmd
}

func (a *applying) run(ctx context.Context, args []string) error {
	topics, err := a.topics(args)
	if err != nil {
		return err
	}
	b, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer b.Close()

	r, err := a.reportOf(ctx, b, topics)
	if err != nil {
		return err
	}
	if a.recreated {
		if err := a.recreate(ctx, b, &r, topics); err != nil {
			return err
		}
	}
	if err := conflicts(&r, topics); err != nil {
		if a.session.JSON { // the error has the conflicts for people
			if err := cli.Read(r.print(a.session)); err != nil {
				return err
			}
		}
		return &cli.ExitError{Code: cli.ExitFound, Err: fmt.Errorf("nothing was declared: %w", err)}
	}
	if err := declareAll(b, &r, topics); err != nil {
		return err
	}
	if a.withTargets {
		if err := a.deadLetterTargets(ctx, b, &r, topics); err != nil {
			return err
		}
	}

	if err := cli.Read(r.print(a.session)); err != nil {
		return err
	}
	if missing := r.mains(inspect.Missing); len(missing) > 0 {
		a.session.Note("missing main queues, which their services declare: %s", joinNames(missing))
	}
	if conflicting := r.mains(inspect.Conflict); len(conflicting) > 0 {
		a.session.Note("declared everything but what apply never changes, and is in conflict: %s",
			joinNames(conflicting))
		return &cli.ExitError{Code: cli.ExitIncomplete}
	}

	return nil
}

func joinNames(objects []object) string {
	names := make([]string, len(objects))
	for i, o := range objects {
		names[i] = fmt.Sprintf("%s %q", o.Kind, o.Name)
	}

	return strings.Join(names, ", ")
}

// declareAll declares the ladders, which the plans need, and then the plans.
func declareAll(b *inspect.Broker, r *report, topics []inspect.Topic) error {
	declare := func(what string, plan topology.Plan, objects []object) error {
		if err := b.Declare(plan); err != nil {
			return fmt.Errorf("%s: some objects were not declared; fix the cause and run the command again: %w", what,
				err)
		}
		for i, o := range objects {
			switch {
			case o.Kind == kindMain:
			case o.State == inspect.Missing:
				objects[i].State = inspect.Created
			case o.State == inspect.Untold: // it was there or not; now it is
				objects[i].State = inspect.Present
			}
		}
		return nil
	}
	for i, l := range (inspect.Facts{Topics: topics}).Ladders() {
		if err := declare(fmt.Sprintf("ladder %q", l.Name()), l.Shared(), r.Ladders[i].Objects); err != nil {
			return err
		}
	}
	for i, t := range topics {
		if err := declare(fmt.Sprintf("queue %q", t.Plan.Queue), t.Plan, r.Queues[i].Objects); err != nil {
			return err
		}
	}

	return nil
}

// conflicts are what would end a declaration in the middle.
func conflicts(r *report, topics []inspect.Topic) error {
	var errs []error
	for _, o := range r.in(inspect.Conflict) {
		if o.Kind == kindMain { // which is not declared here: a change of the strategy begins with the rest
			continue
		}
		if o.err == nil {
			o.err = fmt.Errorf("%s %q: %s", o.Kind, o.Name, o.Detail)
		}
		errs = append(errs, o.err)
	}
	for i, t := range topics {
		if r.lacksMain(i, t) {
			errs = append(errs, fmt.Errorf("main queue %q does not exist, and shared retry queues need it; start its "+
				"service, or declare it as its service does", t.Plan.Queue))
		}
	}

	return errors.Join(errs...)
}

// lacksMain tells of a topic whose shared retry queues need the main queue, which is missing.
func (r *report) lacksMain(i int, t inspect.Topic) bool {
	return t.Plan.IsShared() && r.Queues[i].Objects[0].State == inspect.Missing
}
