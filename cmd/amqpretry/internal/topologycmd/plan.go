package topologycmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
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
				return len(r.in(stateMissing)) > len(r.mains(stateMissing)) || r.Summary[stateConflict] > 0
			})
		},
	}
	cmd.Flags().BoolVar(&offline, "offline", false, "print the plan without connecting to a broker")

	return cmd
}

func (c *topologies) verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify QUEUE|TOPIC=QUEUE...",
		Short: "Check that a topology exists on the broker, for monitoring and pipelines",
		Long: `Check that the main queues and their topology exist as planned. Nothing is changed. The output is
that of plan, and a missing main queue is a difference as well.

Unseen objects are listed, and are no difference: bindings without the management API, and arguments
of objects that the user may not declare. With the management API, only missing permissions leave
objects unseen.

` + jsonHelp + `

Exit codes: 0 everything exists; 1 the broker could not be reached; 2 wrong usage; 3 objects are
missing or in conflict.`,
		Example: `  amqpretry topology verify --policies retry.yaml orders
  amqpretry topology verify --policies retry.yaml --json orders payments || notify`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.check(cmd.Context(), args, func(r *report) bool {
				return r.Summary[stateMissing]+r.Summary[stateConflict] > 0
			})
		},
	}
}

// check inspects, prints, and ends with 3 if differs says so.
func (c *topologies) check(ctx context.Context, args []string, differs func(*report) bool) error {
	targets, err := c.targets(args)
	if err != nil {
		return err
	}
	b, end, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer end()

	r, err := c.inspectAll(ctx, b, targets)
	if err != nil {
		return err
	}
	if err := r.print(c.session); err != nil && !errors.Is(err, cli.ErrNobodyReads) {
		// the exit code is asked for as well
		return err
	}
	if differs(&r) {
		return &cli.ExitError{Code: cli.ExitFound}
	}

	return nil
}

// offline prints plans without a broker.
func (c *topologies) offline(args []string) error {
	targets, err := c.targets(args)
	if err != nil {
		return err
	}
	r := planned(targets)
	if c.session.JSON {
		return r.print(c.session)
	}

	for i, t := range targets {
		if i > 0 {
			if _, err := fmt.Fprintln(c.session.Out); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprint(c.session.Out, safeLines(t.plan.String())); err != nil {
			return err
		}
	}
	for _, ladder := range r.Ladders {
		if _, err := fmt.Fprintf(c.session.Out, "\n%s\n", cli.Safe(ladder.summary())); err != nil {
			return err
		}
	}

	return nil
}

// planned is a report of which nothing was looked at.
func planned(targets []target) report {
	var r report
	for _, t := range targets {
		objects := append([]object{mainQueue(t.plan)}, objectsOf(t.plan)...)
		for i := range objects {
			objects[i].State = statePlanned
		}
		r.Queues = append(r.Queues, queueReport{Topic: t.Topic, Queue: t.Queue, Objects: objects})
	}
	for _, ladder := range ladders(targets) {
		l := ladderReport{Name: ladder.Name(), Objects: objectsOf(ladder.Shared())}
		for i := range l.Objects {
			l.Objects[i].State = statePlanned
		}
		r.Ladders = append(r.Ladders, l)
	}

	return r
}

// objectsOf are those that a plan declares.
func objectsOf(plan topology.Plan) []object {
	var objects []object
	for _, x := range plan.Exchanges {
		objects = append(objects, exchangeObject(x))
	}
	for _, q := range plan.Queues {
		objects = append(objects, queueObject(q))
	}
	for _, b := range plan.Bindings {
		objects = append(objects, bindingObject(b))
	}

	return objects
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
	targets, err := a.targets(args)
	if err != nil {
		return err
	}
	b, end, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer end()

	r, err := a.inspectAll(ctx, b, targets)
	if err != nil {
		return err
	}
	if a.recreated {
		if err := a.recreate(ctx, b, &r, targets); err != nil {
			return err
		}
	}
	if err := conflicts(&r, targets); err != nil {
		if a.session.JSON { // the error has the conflicts for people
			if err := r.print(a.session); err != nil && !errors.Is(err, cli.ErrNobodyReads) {
				return err
			}
		}
		return &cli.ExitError{Code: cli.ExitFound, Err: fmt.Errorf("nothing was declared: %w", err)}
	}
	if err := declareAll(b, &r, targets); err != nil {
		return err
	}
	if a.withTargets {
		if err := a.deadLetterTargets(ctx, b, &r, targets); err != nil {
			return err
		}
	}

	if err := r.print(a.session); err != nil && !errors.Is(err, cli.ErrNobodyReads) {
		// the exit code is asked for as well
		return err
	}
	if missing := r.mains(stateMissing); len(missing) > 0 {
		a.session.Note("missing main queues, which their services declare: %s", joinNames(missing))
	}
	if conflicting := r.mains(stateConflict); len(conflicting) > 0 {
		a.session.Note("declared everything but what apply never changes, and is in conflict: %s",
			joinNames(conflicting))
		return &cli.ExitError{Code: cli.ExitIncomplete}
	}

	return nil
}

// declareAll declares the ladders, which the plans need, and then the plans.
func declareAll(b *broker, r *report, targets []target) error {
	for i, ladder := range ladders(targets) {
		if err := ladder.Shared().Declare(b); err != nil {
			return fmt.Errorf("ladder %q: some objects were not declared; fix the cause and run the command again: %w",
				ladder.Name(), err)
		}
		declared(r.Ladders[i].Objects)
	}
	for i, t := range targets {
		if err := t.plan.DeclareOwn(b); err != nil {
			return fmt.Errorf("queue %q: some objects were not declared; fix the cause and run the command again: %w",
				t.Queue, err)
		}
		declared(r.Queues[i].Objects)
	}

	return nil
}

// conflicts are what would end a declaration in the middle.
func conflicts(r *report, targets []target) error {
	var errs []error
	for _, o := range r.in(stateConflict) {
		if o.Kind == kindMain { // which is not declared here: a change of the strategy begins with the rest
			continue
		}
		if o.err == nil {
			o.err = fmt.Errorf("%s %q: %s", o.Kind, o.Name, o.Detail)
		}
		errs = append(errs, o.err)
	}
	for i, t := range targets {
		if t.plan.IsShared() && r.Queues[i].Objects[0].State == stateMissing {
			errs = append(errs, fmt.Errorf("main queue %q does not exist, and shared retry queues need it; start its "+
				"service, or declare it as its service does", t.Queue))
		}
	}

	return errors.Join(errs...)
}

// declared is what has become of what was missing, or not seen, by a declaration that has
// succeeded.
func declared(objects []object) {
	for i, o := range objects {
		switch {
		case o.Kind == kindMain:
		case o.State == stateMissing:
			objects[i].State = stateCreated
		case o.State == stateUnseen: // it was there or not; now it is
			objects[i].State = statePresent
		}
	}
}
