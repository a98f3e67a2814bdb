package dlqweb

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// planPage asks how a run is to be done, and says what it would do as far as a snapshot tells.
type planPage struct {
	wish
	Limit, Rate, Canary, Tolerate, Until string
	Causes                               []string // that are chosen, in words
	// Preview is what the run would do as the form is now; nil if that must be counted first.
	Preview *preview
	Command string
}

// preview is what a run would do.
type preview struct {
	dlq.Report
	Most   int
	At     time.Time // of the snapshot
	Err    string    // why it would not begin
	Expect string    // what somebody who agrees has seen
	Typed  bool      // the number must be typed
}

// pagePlan asks how a run is to be done. What the query says already is in the form.
func (c *Console) pagePlan(w http.ResponseWriter, r *http.Request, who visitor) error {
	query := r.URL.Query()
	wanted, err := wishFrom(query)
	if err != nil {
		return err
	}
	if wanted.puts() {
		return notFound("A plan of an import without a file")
	}
	asked := wanted
	switch { // what nobody has given yet
	case wanted.Kind == dlq.Move && wanted.To == "":
		asked.To = "?"
	case wanted.Kind == dlq.Park && wanted.Note == "":
		asked.Note = "?"
	case wanted.Kind == dlq.Postpone && wanted.Until.IsZero():
		asked.Until = time.Now().Add(time.Hour)
	}
	plan, err := c.parse(&asked, who)
	if err != nil {
		return err
	}
	wanted.MainQueue = asked.MainQueue
	p := planPage{wish: wanted, Limit: query.Get("limit"), Rate: query.Get("rate"), Canary: query.Get("canary"),
		Tolerate: query.Get("tolerate"), Until: query.Get("until"), Command: wanted.command()}
	now := c.snapshots.view(wanted.target(), wantNothing, "")
	for _, id := range wanted.Filter["fingerprint"] {
		if now.Snapshot == nil {
			break
		}
		if f, ok := now.Fingerprint(id); ok {
			p.Causes = append(p.Causes, causeText(f, who))
		}
	}
	p.Snapshot = ""
	if wanted.RestOf == "" && !wanted.OfWaits() && c.config.Redact == nil { // whose snapshots have other messages
		p.Snapshot = now.ID()
	}
	if p.Snapshot != "" && asked.To != "?" {
		p.Preview = c.preview(r.Context(), p.wish, plan, now)
	}

	return c.render(w, http.StatusOK, "plan", page{Title: "Plan a run", Visitor: who, Data: p})
}

// mostPreview is how many messages are counted before a page is sent: each takes some 8 µs.
// previewTime is how long the page waits for the broker, which tells of the target.
const (
	mostPreview = 40_000
	previewTime = 5 * time.Second
)

// preview counts in a snapshot; nil if that takes too long.
func (c *Console) preview(ctx context.Context, w wish, plan dlq.Plan, now seen) *preview {
	ctx, cancel := context.WithTimeout(ctx, previewTime)
	defer cancel()
	found, err := now.Find(ctx, w.Filter.Encode(), plan.Filter)
	if err == nil && found.Matched > mostPreview {
		return nil
	}
	client, err := c.client(ctx)
	if err != nil {
		return nil
	}
	counted, err := countIn(ctx, client.DeadLetterQueue(w.Queue, w.MainQueue), w, plan, now)
	if ctx.Err() != nil || counted.Counted == nil {
		return nil
	}
	p := &preview{Report: *counted.Counted, At: now.Began}
	p.Most = counted.Most()
	if err == nil && w.Kind != kindExport {
		err = counted.Check()
	}
	if err != nil {
		p.Err = problemOf(err).Error()
		if dropped := (*dlq.DropError)(nil); errors.As(err, &dropped) {
			p.Err = dropped.Error()
		}
	}
	p.Expect = expectation(w, p.Most, p.Warnings)
	p.Typed = w.deletes() && p.Most > mostUntyped

	return p
}

// mostUntyped is how many messages are deleted without somebody typing their number.
const mostUntyped = 100

// expectation identifies what the plan page shows of a run: kind, target, number and warnings. A
// run begins at once only if its count gives the same.
func expectation(w wish, most int, warnings []string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q %d %q", w.Kind, w.To, most, warnings))
	return hex.EncodeToString(sum[:8])
}

// postPlan begins to count, and begins the run if that is what somebody has seen and agreed to.
func (c *Console) postPlan(w http.ResponseWriter, r *http.Request, who visitor) error {
	if err := checkQuery(r); err != nil {
		return err
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		return c.postImport(w, r, who)
	}
	form, err := readForm(w, r)
	if err != nil {
		return err
	}
	if err := onlyKeys(form, formKeys...); err != nil {
		return err
	}
	wanted, err := wishFrom(form)
	if err != nil {
		return err
	}
	if wanted.Snapshot != "" { // of which somebody may have made a newer one since: expect tells whether it is the same
		wanted.Snapshot = c.snapshots.id(wanted.Queue)
	}
	run, err := c.planRun(r.Context(), wanted, who, nil)
	if err != nil {
		return err
	}
	if expected := form.Get("expect"); expected != "" {
		run = c.counted(r.Context(), run)
		seen := expectation(run.wish, run.Most(), run.Plan.Warnings)
		if run.CanConfirm() && seen == expected && isTyped(run, form) {
			confirmed, err := c.runs.confirm(r.Context(), run.ID, who)
			if err == nil {
				run = confirmed
			}
		}
	}

	return see(w, run)
}

// counted waits for the count of a run to end, but no longer than a page waits.
func (c *Console) counted(ctx context.Context, run Run) Run {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for found, err := c.runs.find(run.ID); err == nil; {
		if run = found.snapshot(); run.State != stateCounting {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return run
		}
	}

	return run
}

// isTyped reports whether the form has the number of messages to delete, if the run needs it.
func isTyped(r Run, form url.Values) bool {
	return !r.MustType() || onlyDigits(form.Get("typed")) == strconv.Itoa(r.Most())
}

func onlyDigits(text string) string {
	return strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return -1
		}
		return r
	}, text)
}

// MustType tells whether a confirmation needs the number of messages typed.
func (r Run) MustType() bool { return r.deletes() && r.Most() > mostUntyped }

// postConfirm begins a run.
func (c *Console) postConfirm(w http.ResponseWriter, r *http.Request, who visitor) error {
	form, err := readForm(w, r)
	if err != nil {
		return err
	}
	found, err := c.runs.find(form.Get("id"))
	if err != nil {
		return err
	}
	now := found.snapshot()
	if now.State == stateReady && !isTyped(now, form) {
		return badRequest("typed", "the number of messages, "+strconv.Itoa(now.Most()),
			strconv.Quote(form.Get("typed")))
	}
	run, err := c.runs.confirm(r.Context(), now.ID, who)
	if err != nil {
		return err
	}

	return see(w, run)
}

// command is the command line that does the same; empty if there is none.
func (w wish) command() string {
	name := string(w.Kind)
	if w.puts() || w.Change != nil || w.UndoOf != "" || w.RestOf != "" ||
		w.Kind == dlq.Postpone && w.Until.IsZero() ||
		w.Kind == dlq.Park && (len(w.Filter) == 0 || w.Note == "") { // which it does not take
		return ""
	}
	words := []string{"amqpretry", "dlq", name, quoteWord(w.MainQueue)}
	if w.OfWaits() {
		words = []string{"amqpretry", "delays", name, "--target=" + quoteWord(w.MainQueue)}
	}
	add := func(flag, value string) {
		if value != "" {
			words = append(words, "--"+flag+"="+quoteWord(value))
		}
	}
	for _, key := range filterKeys {
		for _, value := range w.Filter[key] {
			switch {
			case key == "uuid" && !w.OfWaits():
				words = append(words, quoteWord(value))
			case value == "-" && slices.Contains(emptyKeys, key):
				words = append(words, "--"+key+"=")
			default:
				add(key, value)
			}
		}
	}
	switch {
	case (w.Kind == dlq.Purge || w.OfWaits()) && len(w.Filter) == 0:
		words = append(words, "--all")
	case w.Kind == dlq.Unpark && len(w.Filter) == 0:
		words = append(words, "--parked")
	}
	add("to", w.To)
	add("note", w.Note)
	add("until", w.UntilText())
	add("limit", positive(w.Limit))
	if w.Rate > 0 {
		add("rate", units.Rate(w.Rate))
	}
	add("canary", positive(w.Messages))
	add("tolerate", positive(w.Tolerate))
	switches := w.switches()
	for _, flag := range sortedKeys(switches) {
		if switches[flag] {
			words = append(words, "--"+flag)
		}
	}

	return strings.Join(words, " ")
}

// quoteWord quotes a word for a shell, where it needs that.
func quoteWord(word string) string {
	plain := func(r rune) bool {
		return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("-_./:=,+@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}

	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
