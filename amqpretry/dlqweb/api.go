package dlqweb

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb/internal/snapshot"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// apiQueues lists the dead-letter queues.
func (c *Console) apiQueues(r *http.Request, _ visitor) (any, error) {
	o := c.sampler.overview(r.Context())
	if o.Err != nil { // what was there before is no answer
		return nil, o.Err
	}
	queues := slices.Clone(o.Queues)
	c.seen(queues)
	if queues == nil {
		queues = []queueState{}
	}

	return struct {
		At     time.Time    `json:"at"`
		Whole  bool         `json:"whole_virtual_host"`
		Queues []queueState `json:"queues"`
	}{o.At, o.Managed, queues}, nil
}

// apiPatience is how long a read may take until the answer is that it goes on.
const apiPatience = 25 * time.Second

// results waits for a snapshot, and gives what matches. refresh reads the queue anew if it names
// that snapshot.
func (c *Console) results(r *http.Request, who visitor, waits bool, others ...string) (viewOf, seen,
	*snapshot.Result, error) {
	query := r.URL.Query()
	if err := checkKeys(query, append(others, "main-queue", "refresh")...); err != nil {
		return viewOf{}, seen{}, nil, err
	}
	query.Set("queue", r.PathValue("queue"))
	v, err := c.viewIn(query, who)
	if err != nil {
		return v, seen{}, nil, err
	}
	wanted := wantNew
	if query.Has("refresh") {
		wanted = wantAnother
	}
	v.Waits = waits
	now, err := c.awaited(r, v.target, wanted)
	if err != nil {
		return v, now, nil, err
	}
	result, err := c.find(r.Context(), v, now)

	return v, now, result, err
}

// awaited waits for a snapshot of a queue.
func (c *Console) awaited(r *http.Request, t target, wanted want) (seen, error) {
	now := c.snapshots.view(t, wanted, r.URL.Query().Get("refresh"))
	if now.isBehind(wanted) {
		now = c.snapshots.wait(r.Context(), t, now, apiPatience)
	}
	if now.isBehind(wanted) {
		p := now.Reading.Progress()
		return now, &problem{Status: http.StatusServiceUnavailable, Title: "The queue is still being read",
			Detail: strconv.Itoa(p.Seen) + " of " + strconv.Itoa(p.Total) + " messages were read.", Do: "Ask again."}
	}

	if now.Snapshot == nil {
		return now, cmp.Or(now.Err, error(heldByRun()))
	}

	return now, nil
}

// apiQueue counts the dead letters of a queue, as dlq stat does, and groups them by fingerprint.
func (c *Console) apiQueue(r *http.Request, who visitor) (any, error) {
	v, now, found, err := c.results(r, who, false)
	if err != nil {
		return nil, err
	}
	groups := make([]*snapshot.Group, len(found.Groups))
	for i, g := range found.Groups {
		groups[i] = groupFor(g, who)
	}

	return struct {
		queueHead
		snapshot.Numbers
		Groups []*snapshot.Group `json:"groups"`
		Others int               `json:"others"`
	}{headOf(v, now), found.Numbers, groups, found.Others}, nil
}

// queueHead is the beginning of answers about a queue.
type queueHead struct {
	Queue     string    `json:"queue"`
	MainQueue string    `json:"main_queue"`
	Snapshot  string    `json:"snapshot"`
	At        time.Time `json:"at"`
}

func headOf(v viewOf, now seen) queueHead {
	return queueHead{v.Queue, v.MainQueue, now.ID(), now.Began}
}

// pageLimit is how many messages somebody wants.
func pageLimit(query url.Values) (int, error) {
	size, err := number(query, "limit", pageSize)
	if err == nil && (size < 1 || size > mostPage) {
		err = badRequest("limit", "1 to "+strconv.Itoa(mostPage), strconv.Itoa(size))
	}

	return size, err
}

// number reads a number that may be missing.
func number(query url.Values, name string, missing int) (int, error) {
	text := query.Get(name)
	if text == "" {
		return missing, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, badRequest(name, "a number, 0 or more", strconv.Quote(text))
	}

	return n, nil
}

// apiDeadLetters lists dead letters, the oldest first.
func (c *Console) apiDeadLetters(r *http.Request, who visitor) (any, error) {
	size, err := pageLimit(r.URL.Query())
	if err != nil {
		return nil, err
	}
	after, err := number(r.URL.Query(), "after", 0)
	if err != nil {
		return nil, err
	}
	v, now, found, err := c.results(r, who, false, "after", "limit")
	if err != nil {
		return nil, err
	}
	list := struct {
		Queue       string             `json:"queue"`
		Snapshot    string             `json:"snapshot"`
		Matched     int                `json:"matched"`
		DeadLetters []snapshot.Summary `json:"dead_letters"`
		// Next is what to give as after for those that follow; absent if there are none.
		Next int `json:"next,omitempty"`
	}{Queue: v.Queue, Snapshot: now.ID(), Matched: found.Matched}
	from := found.After(after)
	list.DeadLetters = rowsFor(now.Page(found, snapshot.Oldest, from, size), who)
	if n := len(list.DeadLetters); n > 0 && from+n < found.Matched {
		list.Next = list.DeadLetters[n-1].Position
	}

	return list, nil
}

// apiDeadLetter gives one, as dlq show --json does: by its UUID, or by its position in a snapshot.
func (c *Console) apiDeadLetter(r *http.Request, who visitor) (any, error) {
	if err := who.needs(RoleView); err != nil {
		return nil, err
	}
	query := r.URL.Query()
	if err := checkKeys(query, "main-queue"); err != nil {
		return nil, err
	}
	t, err := c.target(r.PathValue("queue"), query.Get("main-queue"))
	if err != nil {
		return nil, err
	}
	now, err := c.awaited(r, t, wantOne)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"uuid", "snapshot", "position"} {
		query.Set(name, r.PathValue(name))
	}
	_, l, err := c.messageIn(r.Context(), t, now, query)

	return l, err
}

const (
	// runsOfPage is how many runs an answer has, and mostRunsOfPage how many at most.
	runsOfPage     = 100
	mostRunsOfPage = 500
)

// apiRuns lists runs, the youngest first.
func (c *Console) apiRuns(r *http.Request, who visitor) (any, error) {
	if err := who.needs(RoleView); err != nil {
		return nil, err
	}
	if err := checkQuery(r, "limit", "after"); err != nil {
		return nil, err
	}
	limit, after := runsOfPage, r.URL.Query().Get("after")
	if text := r.URL.Query().Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > mostRunsOfPage {
			return nil, badRequest("limit", fmt.Sprintf("1 to %d", mostRunsOfPage), strconv.Quote(text))
		}
	}
	list := struct {
		Runs []Run `json:"runs"`
		// Next is what to give as after for those that follow; absent if there are none.
		Next string `json:"next,omitempty"`
	}{Runs: c.runs.list()}
	if after != "" {
		i := slices.IndexFunc(list.Runs, func(r Run) bool { return r.ID == after })
		if i < 0 {
			return nil, badRequest("after", "the ID of a run, as next has it", strconv.Quote(cut(after, mostSummary)))
		}
		list.Runs = list.Runs[i+1:]
	}
	if len(list.Runs) > limit {
		list.Runs = list.Runs[:limit]
		list.Next = list.Runs[limit-1].ID
	}

	return list, nil
}

func (c *Console) apiRun(r *http.Request, who visitor) (any, error) {
	if err := who.needs(RoleView); err != nil {
		return nil, err
	}
	found, err := c.runs.find(r.PathValue("id"))
	if err != nil {
		return nil, err
	}

	return found.snapshot(), nil
}

// apiPlan plans a run: it counts, and waits for somebody to confirm it.
func (c *Console) apiPlan(r *http.Request, who visitor) (any, error) {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		return nil, &problem{Status: http.StatusUnsupportedMediaType, Title: "A run is planned with JSON",
			Do: "Send it with Content-Type: application/json."}
	}
	if err := checkQuery(r); err != nil {
		return nil, err
	}
	var wanted wish
	decoder := json.NewDecoder(http.MaxBytesReader(nil, r.Body, mostForm))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&wanted)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("there is data after the JSON object")
		}
	}
	var tooLarge *http.MaxBytesError
	var known *problem
	switch {
	case errors.As(err, &tooLarge), errors.As(err, &known):
		return nil, err
	case err != nil:
		return nil, badRequest("body", "a run as the OpenAPI document has it", err.Error())
	}
	if wanted.puts() {
		return nil, badRequest("kind", "another kind: POST /queues/{queue}/imports imports a file, and "+
			"POST /runs/{id}/undo an undo file", "import")
	}
	run, err := c.planRun(r.Context(), wanted, who, nil)

	return created{run, "runs/" + run.ID}, err
}

// apiImport plans the import of the lines in its body.
func (c *Console) apiImport(r *http.Request, who visitor) (any, error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != "application/jsonl" && kind != "application/x-ndjson" {
		return nil, &problem{Status: http.StatusUnsupportedMediaType, Title: "An import is JSON Lines",
			Do: "Send the file with Content-Type: application/jsonl."}
	}
	if err := checkQuery(r, "main-queue"); err != nil {
		return nil, err
	}
	wanted := wish{Plan: dlq.Plan{Kind: kindImport}, Queue: r.PathValue("queue"),
		MainQueue: r.URL.Query().Get("main-queue")}
	run, err := c.planRun(r.Context(), wanted, who, r.Body)

	return created{run, "../../runs/" + run.ID}, err
}

// apiOf does something with a run.
func apiOf(do func(context.Context, string, visitor) (Run, error)) func(*http.Request, visitor) (any, error) {
	return func(r *http.Request, who visitor) (any, error) { return do(r.Context(), r.PathValue("id"), who) }
}

func (c *Console) apiUndo(r *http.Request, who visitor) (any, error) {
	run, err := c.undoRun(r.Context(), r.PathValue("id"), who)

	return created{run, "../" + run.ID}, err
}
