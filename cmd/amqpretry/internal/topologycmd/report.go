package topologycmd

import (
	"fmt"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
)

// report is what was found, or done.
type report struct {
	Queues []queueReport `json:"queues"`
	// API is whether the management API was asked as well.
	API     bool          `json:"management_api"`
	Summary map[state]int `json:"summary"`
}

type queueReport struct {
	Topic   string   `json:"topic"`
	Queue   string   `json:"queue"`
	Objects []object `json:"objects"`
}

// jsonHelp is the documentation of the report.
const jsonHelp = `With --json: {"queues": [{"topic", "queue", "objects": [{"kind", "name", "state", "type",
"arguments", "argument", "wanted", "found", "detail"}]}], "management_api", "summary": {state:
number}}. "kind" is main queue, exchange, queue or binding; "type" and "arguments" are the planned
ones; "argument", "wanted" and "found" describe a conflict.`

// count counts the objects of all states; what several main queues share counts once.
func (r *report) count() {
	r.Summary = map[state]int{}
	known := map[string]bool{}
	for _, q := range r.Queues {
		for _, o := range q.Objects {
			if key := o.Kind + "\x00" + o.Name + "\x00" + o.Detail; !known[key] {
				known[key] = true
				r.Summary[o.State]++
			}
		}
	}
}

// in lists the objects in a state.
func (r *report) in(s state) []object {
	var all []object
	for _, q := range r.Queues {
		for _, o := range q.Objects {
			if o.State == s {
				all = append(all, o)
			}
		}
	}

	return all
}

// mainMissing lists the main queues that are not there.
func (r *report) mainMissing() []object {
	var all []object
	for _, o := range r.in(stateMissing) {
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
		rows := make([][]string, len(q.Objects))
		for i, o := range q.Objects {
			rows[i] = []string{string(o.State), o.Kind, o.Name, o.Detail}
		}
		if err := s.Table([]string{"state", "object", "name", "detail"}, rows); err != nil {
			return err
		}
	}
	for _, line := range append(r.conflicts(), r.summary()) {
		if _, err := fmt.Fprintf(s.Out, "\n%s\n", cli.Safe(line)); err != nil {
			return err
		}
	}

	return nil
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
		if o.err != nil {
			lines = append(lines, "conflict: "+o.err.Error())
		}
	}

	return lines
}

// summary is the report in one line.
func (r *report) summary() string {
	var parts []string
	for _, s := range []state{statePresent, stateCreated, statePlanned, stateMissing, stateConflict, stateUnseen,
		stateObsolete} {
		if n := r.Summary[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	text := strings.Join(parts, ", ") + "."
	if !r.API && r.Summary[stateUnseen] > 0 {
		text += fmt.Sprintf(" Bindings and obsolete retry queues need the management API: set %s, or "+
			"--management-url.",
			cli.EnvManagement)
	}

	return text
}

func delayText(q topology.Queue) string { return config.FormatDelay(q.Delay) }

// closeDeadline is until when a broker may take to say goodbye.
func closeDeadline() time.Time { return time.Now().Add(5 * time.Second) }
