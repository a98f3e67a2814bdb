package topologycmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

func (c *topologies) planCommand() *cobra.Command {
	offline := false
	cmd := &cobra.Command{
		Use:   "plan QUEUE|TOPIC=QUEUE...",
		Short: "Show what the broker has of a topology, and what apply would change",
		Long: `Compare the topology of main queues with what the broker has, and change nothing.

The states: present (as planned), missing (apply would create it, unless it is a main queue, which
its service declares), conflict (there, but with another argument: which, wanted and found are
said), unseen (it could not be looked at), obsolete (a retry queue whose delay no policy has any
more).

AMQP compares arguments only by declaring, so this is done with objects that are there already,
which changes nothing, and takes the permissions of a service that declares. AMQP shows no bindings
and no obsolete queues: for these give the management API.

` + jsonHelp + `

Exit codes: 0 nothing would change, 3 something is missing or in conflict, 1 the broker could not be
asked, 2 usage.`,
		Example: `  amqpretry topology plan orders
  amqpretry topology plan --policies retry.yaml orders events=events_billing
  amqpretry topology plan --policies retry.yaml --management-url http://localhost:15672 --json orders
  amqpretry topology plan --policies retry.yaml --offline orders`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if offline {
				return c.offline(args)
			}

			return c.check(cmd.Context(), args, func(r *report) bool {
				return len(r.in(stateMissing)) > len(r.mainMissing()) || r.Summary[stateConflict] > 0
			})
		},
	}
	cmd.Flags().BoolVar(&offline, "offline", false, "print the plan, and ask no broker")

	return cmd
}

func (c *topologies) verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify QUEUE|TOPIC=QUEUE...",
		Short: "Check that the broker has a topology, for monitoring and pipelines",
		Long: `Check that the main queues and their topology are there, as planned. Nothing is made or changed: see
plan, which prints the same. A missing main queue counts as well.

What could not be seen is told and does not count: bindings without the management API, and
arguments of objects that the user may not declare. With the management API nothing stays unseen but
for permissions.

` + jsonHelp + `

Exit codes: 0 all is there, 3 something is missing or in conflict, 1 the broker could not be asked,
2 usage.`,
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

	return nil
}

// planned is a report of which nothing was looked at.
func planned(targets []target) report {
	var r report
	for _, t := range targets {
		objects := []object{mainQueue(t.Queue)}
		for _, x := range t.plan.Exchanges {
			objects = append(objects, exchangeObject(x))
		}
		for _, q := range t.plan.Queues {
			objects = append(objects, queueObject(q))
		}
		for _, b := range t.plan.Bindings {
			objects = append(objects, bindingObject(b))
		}
		for i := range objects {
			objects[i].State = statePlanned
		}
		r.Queues = append(r.Queues, queueReport{Topic: t.Topic, Queue: t.Queue, Objects: objects})
	}

	return r
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
		Short: "Declare what is missing of a topology",
		Long: `Declare the retry exchanges, retry queues, dead-letter queues and bindings of main queues. It can be
repeated: what is there stays as it is, with its messages. If anything is in conflict, nothing at
all is declared.

Main queues are not declared: they belong to their services. One that is missing is told; with
shared retry queues it must be there, as it is bound. Without --recreate nothing is deleted: see
prune.

--recreate deletes a retry queue in conflict once it is certainly empty, as prune does, and declares
it as planned. What waits in it comes back before. A retry queue with consumers stays, and so does a
dead-letter queue.

--dead-letter-targets is about the main queue's own x-dead-letter-exchange. A missing exchange is
declared (fanout), an exchange that leads to no queue is bound to the dead-letter queue, and a
missing queue is declared. The dead-letter queue is declared in any case, under the mode off too.

` + jsonHelp +
			` The states are created and present (a binding that could not be seen is present, whether it was there or not).

Exit codes: 0 all is there, 1 it could not be declared, 2 usage.`,
		Example: `  amqpretry topology plan --policies retry.yaml orders
  amqpretry topology apply --policies retry.yaml orders
  amqpretry topology apply --policies retry.yaml --recreate orders`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd.Context(), args) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&a.recreated, "recreate", false,
		"delete retry queues in conflict, and declare them again (management API)")
	flags.BoolVar(&a.withTargets, "dead-letter-targets", false,
		"declare where main queues dead-letter to by themselves (management API)")

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
		return fmt.Errorf("nothing was declared: %w", err)
	}
	for i, t := range targets {
		if err := t.plan.Declare(b); err != nil {
			return fmt.Errorf("queue %q: not all was declared, and what was stays; this can be repeated: %w", t.Queue,
				err)
		}
		r.Queues[i].declared()
	}
	if a.withTargets {
		if err := a.deadLetterTargets(ctx, b, &r, targets); err != nil {
			return err
		}
	}

	if err := r.print(a.session); err != nil {
		return err
	}
	if missing := r.mainMissing(); len(missing) > 0 {
		a.session.Note("not there, and not declared, as its service does that: %s", joinNames(missing))
	}

	return nil
}

// conflicts are what would end a declaration in the middle.
func conflicts(r *report, targets []target) error {
	var errs []error
	for _, o := range r.in(stateConflict) {
		if o.err == nil {
			o.err = fmt.Errorf("%s %q: %s", o.Kind, o.Name, o.Detail)
		}
		errs = append(errs, o.err)
	}
	for i, t := range targets {
		if t.plan.IsShared() && r.Queues[i].Objects[0].State == stateMissing {
			errs = append(errs, fmt.Errorf("main queue %q is not there: with shared retry queues it is bound to the "+
				"return exchange; start its service, or declare it as its service does", t.Queue))
		}
	}

	return errors.Join(errs...)
}

// declared is what has become of what was missing, or not seen, by a declaration that has succeeded.
func (q *queueReport) declared() {
	for i, o := range q.Objects {
		switch {
		case o.Kind == kindMain:
		case o.State == stateMissing:
			q.Objects[i].State = stateCreated
		case o.State == stateUnseen: // it was there or not; now it is
			q.Objects[i].State = statePresent
		}
	}
}
