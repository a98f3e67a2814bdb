package topologycmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

// report is what was found, or done.
type report struct {
	Queues []queueReport `json:"queues"`
	// Ladders are what main queues with exact delays share.
	Ladders []ladderReport `json:"ladders,omitempty"`
	// API is whether the management API was asked as well.
	API     bool                  `json:"management_api"`
	Summary map[inspect.State]int `json:"summary"`
}

type queueReport struct {
	Topic   string   `json:"topic"`
	Queue   string   `json:"queue"`
	Objects []object `json:"objects"`
}

type ladderReport struct {
	Name    string   `json:"name"`
	Objects []object `json:"objects"`
}

// jsonHelp is the documentation of the report.
const jsonHelp = `With --json: {"queues": [{"topic", "queue", "objects": [{"kind", "name", "state", "type",
"arguments", "argument", "wanted", "found", "where", "detail", "differences", "fix"}]}], "ladders":
[{"name", "objects"}], "management_api", "summary": {state: number}}. "kind" is main queue, exchange,
queue or binding; "type" and "arguments" are the planned ones, for a main queue those of its strategy;
"argument", "wanted" and "found" describe a conflict, "differences" all of a main queue or of a file,
"where" is the place in a file, and "fix" ends them. "ladders" is absent without exact delays.`

// all are the objects of all queues and ladders.
func (r *report) all() []object {
	var all []object
	for _, q := range r.Queues {
		all = append(all, q.Objects...)
	}
	for _, l := range r.Ladders {
		all = append(all, l.Objects...)
	}

	return all
}

// count counts the objects of all states; what several main queues share counts once.
func (r *report) count() {
	r.Summary = map[inspect.State]int{}
	known := map[string]bool{}
	for _, o := range r.all() {
		if key := o.Kind + "\x00" + o.Name + "\x00" + o.Detail; !known[key] {
			known[key] = true
			r.Summary[o.State]++
		}
	}
}

// in lists the objects in a state.
func (r *report) in(s inspect.State) []object { return inState(r.all(), s) }

func inState(objects []object, s inspect.State) []object {
	return slices.DeleteFunc(slices.Clone(objects), func(o object) bool { return o.State != s })
}

// mains lists the main queues in a state.
func (r *report) mains(s inspect.State) []object {
	return slices.DeleteFunc(r.in(s), func(o object) bool { return o.Kind != kindMain })
}

// print prints it for people or for programs.
func (r *report) print(s *cli.Session) error {
	r.count()
	if s.JSON {
		return s.PrintJSON(r)
	}

	p := s.Printer()
	for i, q := range r.Queues {
		if i > 0 {
			p.Line("")
		}
		p.Line("queue %s", cli.Safe(nameOf(q)))
		printObjects(p, q.Objects)
	}
	for _, l := range r.Ladders {
		p.Line("\n%s", cli.Safe(l.summary()))
		printObjects(p, l.notable())
	}
	for _, text := range append(r.conflicts(), r.summary()) {
		p.Line("\n%s", safe(text))
	}

	return p.Err()
}

func printObjects(p *cli.Printer, objects []object) {
	if len(objects) == 0 {
		return
	}
	rows := make([][]string, len(objects))
	for i, o := range objects {
		rows[i] = []string{string(o.State), o.Kind, o.Name, o.Detail}
	}
	p.Table([]string{"state", "object", "name", "detail"}, rows)
}

// notable are those of the many objects of a ladder that are missing or in conflict. If all are
// missing, its summary says so.
func (l ladderReport) notable() []object {
	objects := inState(l.Objects, inspect.Missing)
	if len(objects) == len(l.Objects) {
		return nil
	}
	objects = append(objects, inState(l.Objects, inspect.Conflict)...)
	unseen := slices.DeleteFunc(inState(l.Objects, inspect.Untold),
		func(o object) bool { return o.Kind == kindBinding })

	return append(objects, unseen[:min(1, len(unseen))]...) // one, which has the reason
}

// summary is a ladder in one line: "ladder NAME: 55 queues, 8 exchanges, 61 bindings: present".
func (l ladderReport) summary() string {
	kinds, states := map[string]int{}, map[inspect.State]int{}
	for _, o := range l.Objects {
		kinds[o.Kind]++
		states[o.State]++
	}
	text := fmt.Sprintf("ladder %s: %d queues, %d exchanges, %d bindings", l.Name, kinds[kindQueue],
		kinds[kindExchange], kinds[kindBinding])
	for _, s := range allStates {
		if states[s] == len(l.Objects) {
			return text + ": " + string(s)
		}
	}

	return text + ": " + statesText(states)
}

func nameOf(q queueReport) string {
	if q.Topic == q.Queue {
		return q.Queue
	}

	return fmt.Sprintf("%s, topic %s", q.Queue, q.Topic)
}

// reportOf is what was found.
func (c *topologies) reportOf(ctx context.Context, b *inspect.Broker, topics []inspect.Topic) (report, error) {
	client, err := c.session.ManagementClient("")
	if err != nil {
		return report{}, err
	}
	f, err := inspect.Compare(ctx, inspect.Facts{Names: c.names(), Topics: topics}, b, client)
	if err != nil {
		return report{}, err
	}
	r := reported(topics, func(o inspect.Object) object { return compared(f, o) })
	r.API = client != nil
	for i, t := range topics {
		objects := r.Queues[i].Objects
		if r.API {
			tellOwners(ctx, client, objects)
		}
		if objects[0], err = c.compareMain(b, f, t, objects[0]); err != nil {
			return report{}, err
		}
	}
	r.addObsolete(f.Obsolete.Value)

	return r, nil
}

// reported has a line for each object.
func reported(topics []inspect.Topic, line func(inspect.Object) object) report {
	lines := func(objects []inspect.Object) []object {
		all := make([]object, len(objects))
		for i, o := range objects {
			all[i] = line(o)
		}
		return all
	}
	var r report
	for _, t := range topics {
		r.Queues = append(r.Queues, queueReport{Topic: t.Name, Queue: t.Plan.Queue, Objects: lines(t.Objects())})
	}
	for _, l := range (inspect.Facts{Topics: topics}).Ladders() {
		r.Ladders = append(r.Ladders, ladderReport{Name: l.Name(), Objects: lines(l.Objects())})
	}

	return r
}

// tellOwners completes what is said of exclusive queues of other connections. The API may not know
// them yet.
func tellOwners(ctx context.Context, client *httpapi.Client, objects []object) {
	for i := range objects {
		var exclusive *topology.ExclusiveError
		if !errors.As(objects[i].err, &exclusive) {
			continue
		}
		if queue, err := client.Queue(ctx, exclusive.Queue); err == nil && queue.Owner.Connection != "" {
			objects[i].Detail += " (" + queue.Owner.Connection + ")"
		}
	}
}

// addObsolete adds what is obsolete to the main queues that it belongs to.
func (r *report) addObsolete(found retire.Found) {
	for _, q := range found.Queues {
		main, _ := q.Arguments["x-dead-letter-routing-key"].(string)
		r.add(main, queueObject(q.Queue).with(inspect.Obsolete, fmt.Sprintf("no policy has its delay of %s: "+
			"'amqpretry topology prune' deletes it", delayText(q.Queue))))
	}
	for _, x := range found.Exchanges {
		o := object{Kind: kindExchange, Name: x.Name, Type: amqp091.ExchangeHeaders}
		r.add(x.Queue, o.with(inspect.Obsolete, "nothing dead-letters to it: 'amqpretry topology prune' deletes it"))
	}
}

// add adds an object to a main queue.
func (r *report) add(main string, o object) {
	for i := range r.Queues {
		if r.Queues[i].Queue == main {
			r.Queues[i].Objects = append(r.Queues[i].Objects, o)
			return
		}
	}
}

// conflicts tell each with the ways out.
func (r *report) conflicts() []string {
	var lines []string
	for _, o := range r.in(inspect.Conflict) {
		switch {
		case o.Kind == kindMain && o.Fix != "":
			found := o.Differences
			if len(found) == 0 {
				found = []string{o.Detail}
			}
			lines = append(lines, fmt.Sprintf("conflict: main queue %q is not as its strategy needs it:\n  %s\n%s",
				o.Name, strings.Join(found, "\n  "), o.Fix))
		case o.Where != "":
			lines = append(lines, fmt.Sprintf("conflict: %s: %s %q is not as planned:\n  %s", o.Where, o.Kind, o.Name,
				strings.Join(o.Differences, "\n  ")))
		case o.err != nil:
			lines = append(lines, "conflict: "+oneLine(o.err.Error()))
		}
	}

	return lines
}

// oneLine is a text whose line breaks come from names.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", `\n`) }

// summary is the report in one line.
func (r *report) summary() string {
	text := statesText(r.Summary) + "."
	if !r.API && r.Summary[inspect.Untold] > 0 {
		text += fmt.Sprintf(" Bindings and obsolete retry queues need the management API: set %s, or "+
			"--management-url.",
			cli.EnvManagement)
	}

	return text
}

// allStates in the order in which they are told.
var allStates = []inspect.State{inspect.Present, inspect.Created, inspect.Planned, inspect.Missing, inspect.Conflict,
	inspect.Untold,
	inspect.Obsolete}

// statesText is "7 present, 1 missing".
func statesText(numbers map[inspect.State]int) string {
	var parts []string
	for _, s := range allStates {
		if n := numbers[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}

	return strings.Join(parts, ", ")
}

func delayText(q topology.Queue) string { return config.FormatDelay(q.Delay) }
