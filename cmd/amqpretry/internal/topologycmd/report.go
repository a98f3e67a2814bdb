package topologycmd

import (
	"fmt"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// report is what was found, or done.
type report struct {
	Queues []queueReport `json:"queues"`
	// Ladders are what main queues with exact delays share.
	Ladders []ladderReport `json:"ladders,omitempty"`
	// API is whether the management API was asked as well.
	API     bool          `json:"management_api"`
	Summary map[state]int `json:"summary"`
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
"arguments", "argument", "wanted", "found", "detail", "differences", "fix"}]}], "ladders": [{"name",
"objects"}], "management_api", "summary": {state: number}}. "kind" is main queue, exchange, queue or
binding; "type" and "arguments" are the planned ones, for a main queue those of its strategy;
"argument", "wanted" and "found" describe a conflict, "differences" all of a main queue, and "fix" ends
them. "ladders" is absent without exact delays.`

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
	r.Summary = map[state]int{}
	known := map[string]bool{}
	for _, o := range r.all() {
		if key := o.Kind + "\x00" + o.Name + "\x00" + o.Detail; !known[key] {
			known[key] = true
			r.Summary[o.State]++
		}
	}
}

// in lists the objects in a state.
func (r *report) in(s state) []object { return inState(r.all(), s) }

func inState(objects []object, s state) []object {
	var all []object
	for _, o := range objects {
		if o.State == s {
			all = append(all, o)
		}
	}

	return all
}

// mains lists the main queues in a state.
func (r *report) mains(s state) []object {
	var all []object
	for _, o := range r.in(s) {
		if o.Kind == kindMain {
			all = append(all, o)
		}
	}

	return all
}

// print prints it for people or for programs.
func (r *report) print(s *cli.Session) error {
	r.count()
	if s.JSON {
		return s.PrintJSON(r)
	}

	for i, q := range r.Queues {
		if i > 0 {
			if _, err := fmt.Fprintln(s.Out); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(s.Out, "queue %s\n", cli.Safe(nameOf(q))); err != nil {
			return err
		}
		if err := printObjects(s, q.Objects); err != nil {
			return err
		}
	}
	for _, l := range r.Ladders {
		if err := l.print(s); err != nil {
			return err
		}
	}
	for _, text := range append(r.conflicts(), r.summary()) {
		if _, err := fmt.Fprintf(s.Out, "\n%s", safeLines(text)); err != nil {
			return err
		}
	}

	return nil
}

func printObjects(s *cli.Session, objects []object) error {
	rows := make([][]string, len(objects))
	for i, o := range objects {
		rows[i] = []string{string(o.State), o.Kind, o.Name, o.Detail}
	}

	return s.Table([]string{"state", "object", "name", "detail"}, rows)
}

// print prints a ladder in one line, and of its many objects those that are missing or in conflict.
func (l ladderReport) print(s *cli.Session) error {
	if _, err := fmt.Fprintf(s.Out, "\n%s\n", cli.Safe(l.summary())); err != nil {
		return err
	}
	objects := inState(l.Objects, stateMissing)
	if len(objects) == len(l.Objects) {
		return nil // which the line says
	}
	objects = append(objects, inState(l.Objects, stateConflict)...)
	for _, o := range inState(l.Objects, stateUnseen) {
		if o.Kind != kindBinding { // one, which has the reason
			objects = append(objects, o)
			break
		}
	}
	if len(objects) == 0 {
		return nil
	}

	return printObjects(s, objects)
}

// summary is a ladder in one line: "ladder NAME: 55 queues, 8 exchanges, 61 bindings: present".
func (l ladderReport) summary() string {
	kinds, states := map[string]int{}, map[state]int{}
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

// conflicts tell each with the ways out.
func (r *report) conflicts() []string {
	var lines []string
	for _, o := range r.in(stateConflict) {
		switch {
		case o.Kind == kindMain && o.Fix != "":
			found := o.Differences
			if len(found) == 0 {
				found = []string{o.Detail}
			}
			lines = append(lines, fmt.Sprintf("conflict: main queue %q is not as its strategy needs it:\n  %s\n%s",
				o.Name, strings.Join(found, "\n  "), o.Fix))
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
	if !r.API && r.Summary[stateUnseen] > 0 {
		text += fmt.Sprintf(" Bindings and obsolete retry queues need the management API: set %s, or "+
			"--management-url.",
			cli.EnvManagement)
	}

	return text
}

// allStates in the order in which they are told.
var allStates = []state{statePresent, stateCreated, statePlanned, stateMissing, stateConflict, stateUnseen,
	stateObsolete}

// statesText is "7 present, 1 missing".
func statesText(numbers map[state]int) string {
	var parts []string
	for _, s := range allStates {
		if n := numbers[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}

	return strings.Join(parts, ", ")
}

func delayText(q topology.Queue) string { return config.FormatDelay(q.Delay) }

// closeDeadline is until when a broker may take to say goodbye.
func closeDeadline() time.Time { return time.Now().Add(5 * time.Second) }
