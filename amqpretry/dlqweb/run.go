package dlqweb

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// runKind is what a run does.
type runKind string

const (
	kindReplay runKind = "replay"
	kindMove   runKind = "move"
	kindPurge  runKind = "purge"
	kindExport runKind = "export"
	kindImport runKind = "import"
)

var kinds = []runKind{kindReplay, kindMove, kindPurge, kindExport, kindImport}

// role is what it needs.
func (k runKind) role() Role {
	switch k {
	case kindExport:
		return RoleView
	case kindPurge:
		return RoleDelete
	default:
		return RoleReplay
	}
}

// takes tells whether it takes messages out of the dead-letter queue.
func (k runKind) takes() bool { return k == kindReplay || k == kindMove || k == kindPurge }

// Past is what has happened to a message then.
func (k runKind) Past() string {
	return map[runKind]string{
		kindReplay: "replayed", kindMove: "moved", kindPurge: "deleted", kindExport: "exported", kindImport: "put back",
	}[k]
}

// runState is how far a run is.
type runState string

const (
	stateCounting    runState = "counting"    // how many messages it would be about
	stateReady       runState = "ready"       // counted, and nothing is done before somebody confirms
	stateRunning     runState = "running"     // confirmed
	stateStopping    runState = "stopping"    // somebody has stopped it, and what is on its way is waited for
	stateDone        runState = "done"        // to its end
	stateStopped     runState = "stopped"     // by somebody, by its canary, or as the console was closed
	stateFailed      runState = "failed"      // see its error
	stateInterrupted runState = "interrupted" // the console was killed
	stateDiscarded   runState = "discarded"   // nobody has confirmed it
)

// IsOver tells whether nothing more happens to it.
func (s runState) IsOver() bool {
	return slices.Contains([]runState{stateDone, stateStopped, stateFailed, stateInterrupted, stateDiscarded}, s)
}

// IsBusy tells whether something is going on.
func (s runState) IsBusy() bool { return s == stateCounting || s == stateRunning || s == stateStopping }

// wish is what somebody wants to be done: the part of a run that never changes. It is the body of
// POST /runs.
type wish struct {
	Kind      runKind `json:"kind"`
	Queue     string  `json:"queue"`
	MainQueue string  `json:"main_queue,omitempty"`
	// To is the target of a move, and of a replay to another queue.
	To string `json:"to,omitempty"`
	// Filter has the filters by the names that they have in a page's URL.
	Filter url.Values `json:"filter,omitempty"`
	Limit  int        `json:"limit,omitempty"`
	// Rate is how many a second; 0 means as fast as the broker confirms.
	Rate float64 `json:"rate,omitempty"`
	// First is how many go first, as a canary, and Tolerate how many of these may fail.
	First    int  `json:"canary,omitempty"`
	Tolerate int  `json:"tolerate,omitempty"`
	Foreign  bool `json:"foreign,omitempty"`
	// AllowDrop sends messages although the target would drop some.
	AllowDrop bool `json:"allow_drop,omitempty"`
	// Edit changes the one message that the filter selects.
	Edit *edit `json:"edit,omitempty"`
	// UndoOf is the run whose undo file is imported.
	UndoOf string `json:"undo_of,omitempty"`
}

// parse checks a wish, and gives its filter.
func (c *Console) parse(w *wish, who visitor) (dlq.Filter, error) {
	if !slices.Contains(kinds, w.Kind) {
		return dlq.Filter{}, badRequest("kind", fmt.Sprintf("one of %v", kinds), strconv.Quote(string(w.Kind)))
	}
	if err := who.needs(w.Kind.role()); err != nil {
		return dlq.Filter{}, err
	}
	t, err := c.target(w.Queue, w.MainQueue)
	if err != nil {
		return dlq.Filter{}, err
	}
	if err := checkKeys(w.Filter); err != nil {
		return dlq.Filter{}, err
	}
	w.MainQueue = t.MainQueue
	filter, err := parseFilter(w.Filter, who)
	if err != nil {
		return dlq.Filter{}, err
	}
	sends := w.Kind == kindReplay || w.Kind == kindMove
	switch {
	case w.Kind == kindMove && w.To == "":
		return filter, badRequest("to", "the queue to which the messages go", `""`)
	case w.To != "" && !sends:
		return filter, badRequest("to", fmt.Sprintf("empty for a run of the kind %s", w.Kind), strconv.Quote(w.To))
	case w.To == w.Queue:
		return filter, badRequest("to", "another queue than the dead-letter queue itself", strconv.Quote(w.To))
	case len(w.To) > maxName:
		return filter, badRequest("to", "at most 255 bytes", strconv.Itoa(len(w.To)))
	case w.Limit < 0:
		return filter, badRequest("limit", "0 (all) or more", strconv.Itoa(w.Limit))
	case !(w.Rate >= 0 && w.Rate <= maxRate):
		return filter, badRequest("rate", "0 (no bound) or more messages a second", units.Rate(w.Rate))
	case w.First < 0 || w.First > 0 && w.Kind != kindReplay:
		return filter, badRequest("canary", "0, or with a replay more", strconv.Itoa(w.First))
	case w.Tolerate < 0 || w.Tolerate > 0 && w.Tolerate >= w.First:
		return filter, badRequest("tolerate", "0, or fewer than canary", strconv.Itoa(w.Tolerate))
	case w.Edit != nil && (w.Kind != kindReplay || len(w.Filter["uuid"]) != 1):
		return filter, badRequest("edit", "nothing, or with a replay of one message, filter.uuid", "an edit")
	case w.Edit != nil && c.config.Redact != nil:
		return filter, &problem{Status: http.StatusForbidden, Title: "Messages cannot be edited here",
			Detail: "The console redacts them, so an edit could replace text that you cannot see."}
	case w.UndoOf != "" && w.Kind != kindImport:
		return filter, badRequest("undo_of", "nothing, or the ID of a run with an import", strconv.Quote(w.UndoOf))
	}
	if w.Edit != nil {
		w.Limit = 1
	}

	return filter, w.Edit.check()
}

const maxRate = 1e9

// counts are numbers by the names that the command line's --json gives them.
type counts struct {
	Total     int    `json:"total"`
	Seen      int    `json:"seen"`
	Matched   int    `json:"matched"`
	Done      int    `json:"done"`
	Unsettled int    `json:"unsettled"`
	Refused   int    `json:"refused"`
	Hidden    int    `json:"hidden"`
	Left      []left `json:"left"`
	// Warnings are about the target. WouldDrop messages would not stay in it; Dropped ones are not
	// in it after the run.
	Warnings  []string `json:"warnings,omitempty"`
	WouldDrop int      `json:"would_drop,omitempty"`
	Dropped   int      `json:"dropped,omitempty"`
}

type left struct {
	Why      dlq.LeftReason `json:"why"`
	Messages int            `json:"messages"`
}

func countsOf(r dlq.Report) counts {
	c := counts{Total: r.Total, Seen: r.Seen, Matched: r.Matched, Done: r.Done, Unsettled: r.Unsettled,
		Refused: r.Refused, Hidden: r.Hidden, Left: []left{}, Dropped: r.Dropped}
	for why, n := range r.Left {
		c.Left = append(c.Left, left{why, n})
	}
	slices.SortFunc(c.Left, func(a, b left) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.Why, b.Why))
	})

	return c
}

// judge adds what the target would do to n messages; an error if it would lose some.
func (c *counts) judge(r dlq.Report, n int) error {
	bytes := r.Bytes * int64(n) / int64(max(1, c.Can()))
	c.Warnings, c.WouldDrop = r.Target.Warnings(n, bytes), r.Target.Excess(n, bytes)

	return r.Target.Check(n, bytes)
}

// Can is how many can go.
func (c counts) Can() int {
	can := c.Matched
	for _, l := range c.Left {
		can -= l.Messages
	}

	return max(0, can)
}

type canaryState struct {
	Sent         int    `json:"sent"`
	Handled      int    `json:"handled"`
	DeadLettered int    `json:"dead_lettered"`
	Dropped      int    `json:"dropped"`
	Unresolved   int    `json:"unresolved"`
	Retried      int    `json:"retried"`
	Watched      bool   `json:"watched"`
	Stopped      string `json:"stopped,omitempty"`
}

func canaryOf(r dlq.CanaryReport) *canaryState {
	return &canaryState{r.Sent, r.Handled, r.DeadLettered, r.Dropped, r.Unresolved(), r.Retried, r.Watched, r.Stopped}
}

// Run is a run as it is told: in the API, on its page, and in the folder.
type Run struct {
	// ID sorts by the time at which it was planned.
	ID string `json:"id"`
	wish
	// runState is how far it is.
	State runState `json:"state"`
	// By has planned it, ConfirmedBy has confirmed it, and StoppedBy has stopped it.
	By          User      `json:"by"`
	ConfirmedBy User      `json:"confirmed_by,omitempty"`
	StoppedBy   User      `json:"stopped_by,omitempty"`
	Planned     time.Time `json:"planned_at"`
	Confirmed   time.Time `json:"confirmed_at,omitzero"`
	Ended       time.Time `json:"ended_at,omitzero"`
	// Plan is what the dry run has counted, and counts are what has happened.
	Plan counts `json:"plan"`
	counts
	Canary *canaryState `json:"canary_report,omitempty"`
	// Replay is in the header amqpretry-replay of what it has replayed.
	Replay string `json:"run,omitempty"`
	// Undo tells whether it has an undo file, and Undone is the run that has imported it.
	Undo   bool   `json:"undo"`
	Undone string `json:"undone_by,omitempty"`
	// Lines of its file that an import has done. Truncated tells that the last one had no end, and
	// was left out.
	Lines     int  `json:"lines,omitempty"`
	Truncated bool `json:"truncated,omitempty"`
	// Waits is why nothing happens now: the broker takes no messages.
	Waits string `json:"waits,omitempty"`
	Error string `json:"error,omitempty"`
}

// Target is where its messages go; empty for nowhere.
func (r Run) Target() string {
	switch r.Kind {
	case kindReplay:
		return cmp.Or(r.To, r.MainQueue)
	case kindMove:
		return r.To
	case kindImport:
		return r.Queue
	default:
		return ""
	}
}

// Most is how many it is about.
func (r Run) Most() int {
	if can := r.Plan.Can(); r.Limit == 0 || can < r.Limit {
		return can
	}

	return r.Limit
}

// CanUndo tells whether its messages can be put back.
func (r Run) CanUndo() bool { return r.Undo && r.State.IsOver() && r.Undone == "" && r.Kind.takes() }

// Rest is the query of a plan for what it has not done; empty where there is none.
func (r Run) Rest() url.Values {
	limit := r.Limit - r.Done
	if r.Kind == kindImport || r.Edit != nil || r.Limit > 0 && limit <= 0 {
		return nil
	}
	rest := url.Values{"queue": {r.Queue}, "kind": {string(r.Kind)}}
	for key, values := range r.Filter {
		rest[key] = values
	}
	for key, value := range map[string]string{
		"to": r.To, "limit": positive(limit), "rate": units.Rate(r.Rate), "canary": positive(r.First),
		"tolerate": positive(r.Tolerate),
	} {
		if value != "" {
			rest.Set(key, value)
		}
	}
	for key, set := range map[string]bool{"foreign": r.Foreign, "allow-drop": r.AllowDrop} {
		if set {
			rest.Set(key, "yes")
		}
	}

	return rest
}

func positive(n int) string {
	if n <= 0 {
		return ""
	}

	return strconv.Itoa(n)
}

// CanConfirm tells whether it waits for somebody's yes.
func (r Run) CanConfirm() bool { return r.State == stateReady && r.Most() > 0 }

// CanStop tells whether it can be stopped, or discarded.
func (r Run) CanStop() bool {
	return r.State == stateCounting || r.State == stateReady || r.State == stateRunning
}

// FilterText is its filters in words.
func (w wish) FilterText() string {
	var words []string
	for _, key := range filterKeys {
		if values := w.Filter[key]; len(values) > 0 {
			words = append(words, key+" "+strings.Join(values, " or "))
		}
	}
	if len(words) == 0 {
		return "all messages"
	}

	return strings.Join(words, ", ")
}

// edit is what is changed before a replay.
type edit struct {
	// Body is the new body; nil leaves it.
	Body *string `json:"body,omitempty"`
	// Set are headers by name; a value is a string, or {"type", "value"}. Remove are names of
	// headers.
	Set    map[string]typed `json:"set_headers,omitempty"`
	Remove []string         `json:"remove_headers,omitempty"`
}

func (e *edit) check() error {
	if e == nil {
		return nil
	}
	for name, value := range e.Set {
		if name == "" || len(name) > maxName {
			return badRequest("edit.set_headers", "names of 1 to 255 bytes", strconv.Quote(short(name, mostSummary)))
		}
		if _, err := value.parse(); err != nil {
			return badRequest(fmt.Sprintf("edit.set_headers[%q]", name), err.Error(), strconv.Quote(value.Value))
		}
	}

	return nil
}

// apply changes a message.
func (e *edit) apply(m *amqp091.Publishing) error {
	if e.Body != nil {
		m.Body = []byte(*e.Body)
	}
	for _, name := range e.Remove {
		delete(m.Headers, name)
	}
	for name, value := range e.Set {
		parsed, err := value.parse()
		if err != nil {
			return err
		}
		if m.Headers == nil {
			m.Headers = amqp091.Table{}
		}
		m.Headers[name] = parsed
	}

	return nil
}

// typed is the value of a header as text, with its AMQP type.
type typed struct {
	Type  string `json:"type"`
	Value string `json:"value"`
}

// editableTypes are those whose values a form can have.
var editableTypes = []string{"string", "int64", "int32", "int16", "float64", "bool", "time"}

func (t typed) parse() (any, error) {
	wrong := func(wanted string) error { return fmt.Errorf("%s, for the type %s", wanted, t.Type) }
	switch t.Type {
	case "", "string":
		return t.Value, nil
	case "int64", "int32", "int16":
		bits, _ := strconv.Atoi(strings.TrimPrefix(t.Type, "int"))
		n, err := strconv.ParseInt(t.Value, 10, bits)
		switch {
		case err != nil:
			return nil, wrong("a whole number of " + t.Type[len("int"):] + " bits")
		case bits == 64:
			return n, nil
		case bits == 32:
			return int32(n), nil
		default:
			return int16(n), nil
		}
	case "float64":
		f, err := strconv.ParseFloat(t.Value, 64)
		if err != nil {
			return nil, wrong("a number")
		}
		return f, nil
	case "bool":
		if t.Value != "true" && t.Value != "false" {
			return nil, wrong("true or false")
		}
		return t.Value == "true", nil
	case "time":
		at, err := time.Parse(time.RFC3339, t.Value)
		if err != nil {
			return nil, wrong("a time such as 2026-11-22T05:12:00Z")
		}
		return at, nil
	default:
		return nil, fmt.Errorf("one of the types %s", strings.Join(editableTypes, ", "))
	}
}
