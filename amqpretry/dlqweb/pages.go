package dlqweb

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// patience is how long a page waits for a read before it shows the progress.
const patience = 1500 * time.Millisecond

func (c *Console) pageRuns(w http.ResponseWriter, r *http.Request, who visitor) error {
	if err := who.needs(RoleView); err != nil {
		return err
	}
	list := c.runs.list()
	live := false
	for _, run := range list {
		live = live || run.State.IsBusy()
	}

	return c.render(w, http.StatusOK, "runs", page{Title: "Runs", Visitor: who, Live: live, Waits: live,
		Data: list})
}

func (c *Console) pageRun(w http.ResponseWriter, r *http.Request, who visitor) error {
	if err := who.needs(RoleView); err != nil {
		return err
	}
	found, err := c.runs.find(r.URL.Query().Get("id"))
	if err != nil {
		return err
	}
	run := found.snapshot()
	pace, left := found.speed(time.Now())
	data := struct {
		Run
		MayConfirm bool
		Export     bool
		Pace, Left string
		Command    string
		Fate       *fate
	}{run, who.Role >= run.role(), run.Kind == kindExport && run.State == stateDone, pace, left,
		run.command(), c.fateOf(r.Context(), run)}
	title := fmt.Sprintf("%s messages of %s", kindText(run.Kind), run.Queue)
	if run.OfWaits() {
		title = kindText(run.Kind) + " " + run.From()
	}

	return c.render(w, http.StatusOK, "run", page{Title: title, Visitor: who,
		Live:  run.State.IsBusy() || data.Fate != nil,
		Waits: run.State.IsBusy(), Data: data})
}

// planRun checks a wish, writes it down, and begins to count.
func (c *Console) planRun(ctx context.Context, wanted wish, who visitor, input io.Reader) (Run, error) {
	plan, err := c.parse(&wanted, who)
	if err != nil {
		return Run{}, err
	}
	if wanted.puts() && input == nil || wanted.UndoOf != "" {
		return Run{}, badRequest("kind", "an import with a file, or the undo of a run", string(wanted.Kind))
	}
	if err := c.audit(ctx, who, actionPlan, Run{wish: wanted}); err != nil {
		return Run{}, err
	}

	return c.runs.plan(wanted, plan, who, input)
}

// see sends the browser to the page of a run.
func see(w http.ResponseWriter, run Run) error {
	w.Header().Set("Location", "run?id="+url.QueryEscape(run.ID))
	w.WriteHeader(http.StatusSeeOther)

	return nil
}

// wishFrom reads the form of a plan, or its address.
func wishFrom(form url.Values) (wish, error) {
	w := wish{Queue: form.Get("queue"), MainQueue: form.Get("main-queue"), Filter: filterValues(form),
		Snapshot: form.Get("snapshot"), RestOf: form.Get("rest-of"),
		Plan: dlq.Plan{Kind: dlq.Kind(form.Get("kind")), To: strings.TrimSpace(form.Get("to")),
			Note: strings.TrimSpace(form.Get("note")), IncludeParked: form.Get("include-parked") != "",
			Foreign: form.Get("foreign") != "", AllowDrop: form.Get("allow-drop") != ""}}
	for key, n := range map[string]*int{"limit": &w.Limit, "canary": &w.Messages, "tolerate": &w.Tolerate} {
		if text := strings.TrimSpace(form.Get(key)); text != "" {
			var err error
			if *n, err = strconv.Atoi(text); err != nil {
				return w, badRequest(key, "a number", strconv.Quote(text))
			}
		}
	}
	if text := strings.TrimSpace(form.Get("rate")); text != "" {
		var err error
		if w.Rate, err = units.ParseRate(text); err != nil {
			return w, badRequest("rate", "a number of messages with its unit, such as 100/s, 30/m or 5000/h",
				strconv.Quote(text))
		}
	}
	if text := strings.TrimSpace(form.Get("until")); text != "" {
		var err error
		if w.Until, err = parseTime("until", text, time.Now(), true); err != nil {
			return w, err
		}
	}
	if text := form.Get("edit"); text != "" {
		if err := json.Unmarshal([]byte(text), &w.Change); err != nil {
			return w, badRequest("edit", "the JSON of an edit", strconv.Quote(short(text, mostSummary)))
		}
	}

	return w, nil
}

// postImport takes a file, which may be large: it is not held in memory.
func (c *Console) postImport(w http.ResponseWriter, r *http.Request, who visitor) error {
	parts, err := r.MultipartReader()
	if err != nil {
		return badForm(err)
	}
	wanted := wish{Plan: dlq.Plan{Kind: kindImport}}
	for {
		part, err := parts.NextPart()
		if err == io.EOF { //nolint:errorlint // as it is documented
			return badRequest("file", "a file", "none")
		}
		if err != nil {
			return badForm(err)
		}
		if part.FormName() == "file" {
			run, err := c.planRun(r.Context(), wanted, who, &lastPart{part, parts})
			if err != nil {
				return err
			}
			return see(w, run)
		}
		value, err := io.ReadAll(io.LimitReader(part, maxName+1))
		if err != nil {
			return badForm(err)
		}
		switch part.FormName() {
		case "queue":
			wanted.Queue = string(value)
		case "main-queue":
			wanted.MainQueue = string(value)
		default:
			return noImportKey(part.FormName())
		}
	}
}

// readForm reads a form, whose sender may not send too much.
func readForm(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	r.Body = http.MaxBytesReader(w, r.Body, mostForm)
	if err := r.ParseForm(); err != nil {
		return nil, badForm(err)
	}

	return r.PostForm, nil
}

// postRun makes a handler of a form that is about a run.
func postRun(do func(context.Context, string, visitor) (Run, error)) func(http.ResponseWriter, *http.Request,
	visitor) error {
	return func(w http.ResponseWriter, r *http.Request, who visitor) error {
		form, err := readForm(w, r)
		if err != nil {
			return err
		}
		run, err := do(r.Context(), form.Get("id"), who)
		if err != nil {
			return err
		}

		return see(w, run)
	}
}

func (c *Console) undoRun(ctx context.Context, id string, who visitor) (Run, error) {
	w, plan, err := c.runs.undoOf(id, who)
	if err != nil {
		return Run{}, err
	}
	if err := c.audit(ctx, who, actionPlan, Run{ID: id, wish: w}); err != nil {
		return Run{}, err
	}

	return c.runs.undo(w, plan, who)
}
