package dlqweb

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// patience is how long a page waits for a look before it is sent without.
const patience = 1500 * time.Millisecond

// viewOf is a page's view: the queue, the filters, and where the list begins.
type viewOf struct {
	target
	Filter url.Values
	After  int
}

// Query is the view as a query.
func (v viewOf) Query() url.Values {
	query := url.Values{"queue": {v.Queue}}
	for key, values := range v.Filter {
		query[key] = values
	}

	return query
}

// view reads a view and begins to look, or goes on with a look.
func (c *Console) view(query url.Values, who visitor) (viewOf, *pending, error) {
	t, err := c.targetOf(query)
	if err != nil {
		return viewOf{}, nil, err
	}
	v := viewOf{target: t, Filter: filterValues(query)}
	filter, err := parseFilter(v.Filter, who)
	if err != nil {
		return v, nil, err
	}
	if text := query.Get("after"); text != "" {
		if v.After, err = strconv.Atoi(text); err != nil || v.After < 0 {
			return v, nil, badRequest("after", "a position, 0 or more", strconv.Quote(text))
		}
	}

	return v, c.looks.at(t, v.Filter, v.After, filter), nil
}

func (c *Console) pageQueue(w http.ResponseWriter, r *http.Request, who visitor) error {
	v, pending, err := c.view(r.URL.Query(), who)
	if err != nil {
		return err
	}
	pending.wait(r.Context(), patience)
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	state, _ := c.sampler.overview(ctx).state(v.target)
	data := struct {
		viewOf
		State    queueState
		Look     *look
		Problem  *problem
		Progress dlq.Progress
		Bars     []bar
		Reasons  []dlq.Count
		Filters  []filterField
		Hidden   []filterField
		Filtered bool
		Busy     string
	}{
		viewOf: v, State: state, Progress: pending.Progress(), Filters: filterFields(v.Filter, who),
		Hidden:   hiddenFields(v.Filter, who),
		Filtered: len(v.Filter) > 0,
	}
	if pending.ended() {
		if pending.err != nil {
			data.Problem = problemOf(pending.err)
		} else {
			data.Look = pending.look.forRole(who)
			data.Bars = data.Look.Ages.bars()
			data.Reasons = data.Look.ByReason.Sorted()
		}
	}
	c.runs.mu.Lock()
	data.Busy = c.runs.busyWith(v.Queue)
	c.runs.mu.Unlock()

	return c.render(w, http.StatusOK, "queue", page{Title: v.Queue, Visitor: who, Live: true,
		Waits: !pending.ended(), Data: data})
}

// forRole is what somebody may see of a look.
func (k *look) forRole(who visitor) *look {
	if who.CanView() {
		return k
	}
	shown := *k
	shown.Page = make([]summary, len(k.Page))
	for i, s := range k.Page {
		s.Error, s.Unreadable = "", ""
		shown.Page[i] = s
	}
	shown.Groups = make([]*group, len(k.Groups))
	for i, g := range k.Groups {
		without := *g
		without.Pattern = ""
		shown.Groups[i] = &without
	}

	return &shown
}

// filterField is an input of the form with the filters.
type filterField struct{ Key, Label, Value, Hint string }

func filterFields(values url.Values, who visitor) []filterField {
	fields := []filterField{
		{"text", "Text", "", "in error, headers or body"}, {"reason", "Reason", "", "exhausted, permanent, panic…"},
		{"error", "Error contains", "", "connection refused"}, {"error-type", "Error type", "", "*net.OpError"},
		{"handler", "Handler", "", "bill"}, {"topic", "Topic", "", "orders"},
		{"fingerprint", "Fingerprint", "", "46782f56ee19"}, {"uuid", "UUID", "", ""},
		{"older-than", "Older than", "", "30d"}, {"newer-than", "Newer than", "", "2h"},
		{"header", "Header", "", "tenant=acme"}, {"json-field", "JSON field", "", "customer.id=17"},
		{"min-replays", "Replays, at least", "", "1"}, {"max-replays", "Replays, at most", "", "0"},
	}
	shown := fields[:0]
	for _, f := range fields {
		if !who.CanView() && slices.Contains(closedKeys, f.Key) {
			continue
		}
		if len(values[f.Key]) == 1 { // several are hidden, so that they stay several
			f.Value = values.Get(f.Key)
		}
		shown = append(shown, f)
	}

	return shown
}

// hiddenFields are the filters that have no input, or more values than it has room for.
func hiddenFields(values url.Values, who visitor) []filterField {
	inputs := map[string]bool{}
	for _, f := range filterFields(nil, who) {
		inputs[f.Key] = true
	}
	var hidden []filterField
	for _, key := range filterKeys {
		if inputs[key] && len(values[key]) <= 1 {
			continue
		}
		for _, value := range values[key] {
			hidden = append(hidden, filterField{Key: key, Value: value})
		}
	}

	return hidden
}

// bar is one of the histogram of ages.
type bar struct {
	Name                 string
	N                    int
	X, Y, Height, Center int
}

const (
	barWidth, barGap, barsHeight, barsTop = 56, 8, 80, 16
)

func (a ages) bars() []bar {
	most := 1
	for _, n := range a.ByBucket {
		most = max(most, n)
	}
	var bars []bar
	for i, n := range a.ByBucket {
		name := "older"
		if i < len(ageBounds) {
			name = "< " + ageBounds[i].Name
		}
		height := n * barsHeight / most
		if n > 0 {
			height = max(height, 2)
		}
		x := i * (barWidth + barGap)
		bars = append(bars, bar{Name: name, N: n, X: x, Y: barsHeight - height + barsTop, Height: height,
			Center: x + barWidth/2})
	}

	return bars
}

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
	data := struct {
		Run
		MayConfirm bool
		Export     bool
	}{run, who.Role >= run.role(), run.Kind == kindExport && run.State == stateDone}
	title := fmt.Sprintf("%s messages of %s", kindText(run.Kind), run.Queue)

	return c.render(w, http.StatusOK, "run", page{Title: title, Visitor: who, Live: run.State.IsBusy(),
		Waits: run.State.IsBusy(), Data: data})
}

// pagePlan asks how a run is to be done. What the query says already is in the form.
func (c *Console) pagePlan(w http.ResponseWriter, r *http.Request, who visitor) error {
	query := r.URL.Query()
	t, err := c.targetOf(query)
	if err != nil {
		return err
	}
	wanted := wish{Plan: dlq.Plan{Kind: dlq.Kind(query.Get("kind"))}, Queue: t.Queue, MainQueue: t.MainQueue,
		Filter: filterValues(query)}
	if wanted.Kind == kindImport {
		return notFound("A plan of an import without a file")
	}
	if wanted.Kind == dlq.Move {
		wanted.To = "?" // which nobody has given yet
	}
	if _, err := c.parse(&wanted, who); err != nil {
		return err
	}
	data := struct {
		wish
		To, Limit, Rate, Canary, Tolerate string
		Foreign, AllowDrop                bool
	}{wanted, query.Get("to"), query.Get("limit"), query.Get("rate"), query.Get("canary"), query.Get("tolerate"),
		query.Get("foreign") != "", query.Get("allow-drop") != ""}

	return c.render(w, http.StatusOK, "plan", page{Title: "Plan a run", Visitor: who, Data: data})
}

// postPlan begins to count.
func (c *Console) postPlan(w http.ResponseWriter, r *http.Request, who visitor) error {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		return c.postImport(w, r, who)
	}
	wanted, err := wishOf(w, r)
	if err != nil {
		return err
	}
	run, err := c.planRun(r.Context(), wanted, who, nil)
	if err != nil {
		return err
	}

	return see(w, run)
}

// planRun checks a wish, writes it down, and begins to count.
func (c *Console) planRun(ctx context.Context, wanted wish, who visitor, input io.Reader) (Run, error) {
	plan, err := c.parse(&wanted, who)
	if err != nil {
		return Run{}, err
	}
	if wanted.Kind == kindImport && input == nil || wanted.UndoOf != "" {
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

// wishOf reads the form of a plan.
func wishOf(rw http.ResponseWriter, r *http.Request) (wish, error) {
	form, err := readForm(rw, r)
	if err != nil {
		return wish{}, err
	}
	w := wish{Queue: form.Get("queue"), MainQueue: form.Get("main-queue"), Filter: filterValues(form),
		Plan: dlq.Plan{Kind: dlq.Kind(form.Get("kind")), To: strings.TrimSpace(form.Get("to")),
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
			run, err := c.planRun(r.Context(), wanted, who, part)
			if err != nil {
				return err
			}
			return see(w, run)
		}
		value, err := io.ReadAll(io.LimitReader(part, maxName+1))
		if err != nil {
			return badForm(err)
		}
		if part.FormName() == "queue" {
			wanted.Queue = string(value)
		}
	}
}

// readForm reads a form, whose sender may take neither too long nor too much.
func readForm(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	r.Body = http.MaxBytesReader(w, r.Body, mostForm)
	controller := http.NewResponseController(w)
	_ = controller.SetReadDeadline(time.Now().Add(requestTime)) // a server that cannot has limits of its own
	defer func() { _ = controller.SetReadDeadline(time.Time{}) }()
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
