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

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// The kinds of runs beside those of package dlq.
const (
	kindExport dlq.Kind = "export"
	kindImport dlq.Kind = "import"
)

var kinds = []dlq.Kind{dlq.Replay, dlq.Move, dlq.Purge, dlq.Park, dlq.Unpark, dlq.Cancel, dlq.SendNow, dlq.Postpone,
	kindExport, kindImport, kindRestore}

// takes tells whether it takes messages out of a queue, into an undo file.
func (w wish) takes() bool {
	return slices.Contains([]dlq.Kind{dlq.Replay, dlq.Move, dlq.Purge, dlq.Cancel}, w.Kind)
}

// hasRest tells whether messages that it has not done are where they were, and no others.
func (w wish) hasRest() bool { return w.takes() || w.Kind == dlq.SendNow || w.Kind == dlq.Postpone }

// deletes tells whether nobody gets the messages any more.
func (w wish) deletes() bool { return w.Kind == dlq.Purge || w.Kind == dlq.Cancel }

// puts tells whether it sends the messages of a file.
func (w wish) puts() bool { return w.Kind == kindImport || w.Kind == kindRestore }

// NamesParked tells that its filters name messages or their cause, so that parked ones go as well.
func (w wish) NamesParked() bool {
	parked, _ := strconv.ParseBool(w.Filter.Get("parked"))

	return parked || len(w.Filter["uuid"])+len(w.Filter["fingerprint"]) > 0
}

// role is what it needs.
func (w wish) role() Role {
	switch {
	case w.Kind == kindExport:
		return RoleView
	case w.deletes():
		return RoleDelete
	default:
		return RoleReplay
	}
}

// Past is what has happened to a message then.
func (w wish) Past() string {
	return map[dlq.Kind]string{dlq.Replay: "replayed", dlq.Move: "moved", dlq.Purge: "deleted", kindExport: "exported",
		kindImport: "put back", dlq.Park: "parked", dlq.Unpark: "unparked", dlq.Cancel: "cancelled",
		dlq.SendNow: "sent", dlq.Postpone: "postponed", kindRestore: "sent to wait again"}[w.Kind]
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
	dlq.Plan
	Queue     string `json:"queue"`
	MainQueue string `json:"main_queue,omitempty"`
	// Filter has the filters by the names that they have in a page's URL.
	Filter url.Values `json:"filter,omitempty"`
	// Snapshot is the one whose dead letters are counted; empty: the queue is read.
	Snapshot string `json:"snapshot,omitempty"`
	// RestOf is the run whose messages are meant that it has not done, if the console still knows
	// them.
	RestOf string `json:"rest_of,omitempty"`
	// UndoOf is the run whose undo file is imported.
	UndoOf string `json:"undo_of,omitempty"`
}

// parse checks a wish, and gives what package dlq is to do.
func (c *Console) parse(w *wish, who visitor) (dlq.Plan, error) {
	if !slices.Contains(kinds, w.Kind) {
		return dlq.Plan{}, badRequest("kind", fmt.Sprintf("one of %v", kinds), strconv.Quote(string(w.Kind)))
	}
	if err := who.mayDo(Run{wish: *w}); err != nil {
		return dlq.Plan{}, err
	}
	t, err := c.target(w.Queue, w.MainQueue)
	if err != nil {
		return dlq.Plan{}, err
	}
	if err := checkKeys(w.Filter); err != nil {
		return dlq.Plan{}, err
	}
	w.MainQueue = t.MainQueue
	if w.Change != nil {
		w.Limit = 1
	}
	plan := w.Plan
	if plan.Filter, err = parseFilter(w.Filter, who); err != nil {
		return plan, err
	}
	if w.Kind == kindExport || w.puts() {
		plan.Kind = dlq.Purge // to count what is in the queue
	}
	plan.IncludeParked = plan.IncludeParked || w.NamesParked() // counts and runs get other filters
	if w.RestOf != "" {
		if plan.Filter, err = c.runs.restOf(w.RestOf, *w); err != nil {
			return plan, err
		}
	}
	switch {
	case w.To == w.Queue:
		return plan, badRequest("to", "another queue than the dead-letter queue itself", strconv.Quote(w.To))
	case w.To != t.MainQueue && c.config.Broker.Names.Returns(w.To, t.MainQueue):
		return plan, badRequest("to", "another queue than a retry queue or landing queue, from which messages go to a "+
			"main queue", strconv.Quote(w.To))
	case w.Change != nil && len(w.Filter["uuid"]) != 1:
		return plan, badRequest("edit", "nothing, or with a replay of one message, filter.uuid", "an edit")
	case w.Change != nil && c.config.Redact != nil:
		return plan, notEditable()
	case w.Kind == dlq.Postpone && !w.Until.IsZero() && w.Until.Before(time.Now()):
		return plan, badRequest("until", "a time in the future", w.Until.Format(time.RFC3339))
	case w.OfWaits() && w.Snapshot != "":
		return plan, badRequest("snapshot", "nothing for messages that wait, which the run reads itself",
			strconv.Quote(w.Snapshot))
	case w.UndoOf != "" && !w.puts():
		return plan, badRequest("undo_of", "nothing, or the ID of a run with an import", strconv.Quote(w.UndoOf))
	}

	return plan, plan.Validate()
}

func notEditable() *problem {
	return &problem{Status: http.StatusForbidden, Title: "Messages cannot be edited here",
		Detail: "The console redacts them, so an edit could replace text that you cannot see."}
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
	// Plan is what the dry run has counted, and Report what has happened.
	Plan dlq.Report `json:"plan"`
	dlq.Report
	Canary *dlq.CanaryReport `json:"canary_report,omitempty"`
	// Undo tells whether it has an undo file, and Undone is the run that has imported it.
	Undo   bool   `json:"undo"`
	Undone string `json:"undone_by,omitempty"`
	// Lines of its file that an import has done.
	Lines int `json:"lines,omitempty"`
	// Waits is why nothing happens now: the broker takes no messages.
	Waits string `json:"waits,omitempty"`
	Error string `json:"error,omitempty"`
	// Frozen tells that the console knows which messages were counted and not done.
	Frozen bool `json:"-"`
}

// ReadAt is when the queue was read whose snapshot was counted; zero if the run has read the queue
// itself.
func (w wish) ReadAt() time.Time {
	ms, err := strconv.ParseInt(w.Snapshot, 36, 64)
	if err != nil {
		return time.Time{}
	}

	return time.UnixMilli(ms).UTC()
}

// Where its messages go; empty for nowhere.
func (r Run) Where() string {
	switch r.Kind {
	case dlq.Replay, dlq.SendNow:
		return cmp.Or(r.To, r.MainQueue)
	case dlq.Move:
		return r.To
	case kindImport:
		return r.Queue
	default:
		return ""
	}
}

// Most is how many it is about.
func (r Run) Most() int {
	plan := r.wish.Plan
	plan.Counted = &r.Plan

	return plan.Most()
}

// CanUndo tells whether its messages can be put back.
func (r Run) CanUndo() bool { return r.Undo && r.State.IsOver() && r.Undone == "" && r.takes() }

// Rest is the query of a plan for what a run has not done that was stopped, has failed, or was
// interrupted; empty where there is none. An export leaves its messages in the queue, so nothing
// tells those that it has done.
func (r Run) Rest() url.Values {
	limit := r.Limit - r.Done
	ended := slices.Contains([]runState{stateStopped, stateFailed, stateInterrupted}, r.State)
	if !ended || r.Confirmed.IsZero() || !r.hasRest() || r.Change != nil || r.Most() <= r.Done {
		return nil
	}
	rest := url.Values{"queue": {r.Queue}, "main-queue": {r.MainQueue}, "kind": {string(r.Kind)}}
	if r.Frozen {
		rest.Set("rest-of", r.ID)
	}
	for key, values := range r.Filter {
		rest[key] = values
	}
	for key, value := range map[string]string{
		"to": r.To, "limit": positive(limit), "rate": units.Rate(r.Rate), "canary": positive(r.Messages),
		"tolerate": positive(r.Tolerate), "until": r.UntilText(),
	} {
		if value != "" {
			rest.Set(key, value)
		}
	}
	for key, set := range r.switches() {
		if set {
			rest.Set(key, "yes")
		}
	}

	return rest
}

// UntilText is until when it postpones messages.
func (w wish) UntilText() string {
	if w.Until.IsZero() {
		return ""
	}

	return w.Until.UTC().Format(time.RFC3339)
}

// From says where its messages are.
func (w wish) From() string {
	if w.OfWaits() {
		return "messages that wait for " + w.MainQueue
	}

	return w.Queue
}

// switches are the fields that are true or false, by the names that they have in a form.
func (w wish) switches() map[string]bool {
	return map[string]bool{"foreign": w.Foreign, "include-parked": w.IncludeParked, "allow-drop": w.AllowDrop}
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
