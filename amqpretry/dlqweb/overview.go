package dlqweb

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/internal/units"
)

// mostQueues is how many queues the overview shows.
const mostQueues = 200

// overviewData is what the overview has.
type overviewData struct {
	overview
	Messages int64
	Full     int
	Unknown  bool
	Problem  *problem
	// Rows are the queues, the fullest first, up to mostQueues; More are not shown.
	Rows []queueRow
	More int
	Name string
}

// queueRow is a queue of the overview.
type queueRow struct {
	queueState
	Known knownOf
	Past  past
	// Runs are those that count, run or stop now.
	Runs []Run
}

// Cause is the most frequent error as a visitor may see it.
func (r queueRow) Cause(who visitor) string {
	if who.CanView() && r.Known.TopCause != "" {
		return r.Known.TopCause
	}

	return cmp.Or(r.Known.ErrorType, "no error")
}

// Share is how many of its messages have that cause.
func (r queueRow) Share() string {
	percent := 100 * r.Known.Share
	if percent < 1 {
		return "<1 %"
	}

	return fmt.Sprintf("%.0f %%", percent)
}

// isLive tells that a page asks for itself again: by the script, or by itself without JavaScript.
// No person has done anything, so it must not begin to read a queue.
func isLive(r *http.Request) bool {
	return r.Header.Get("X-Requested-With") == "live" || r.URL.Query().Get("live") != ""
}

// again is the address of a page for when it asks for itself without JavaScript.
func again(page string, query url.Values) template.HTMLAttr {
	live := url.Values{"live": {"1"}}
	for key, values := range query {
		if key != "live" {
			live[key] = values
		}
	}
	address := cmp.Or(page, "./") + "?" + live.Encode()

	return template.HTMLAttr( //nolint:gosec // escaped
		`content="5; url=` + template.HTMLEscapeString(address) + `"`)
}

func (c *Console) pageOverview(w http.ResponseWriter, r *http.Request, who visitor) error {
	ctx, cancel := context.WithTimeout(r.Context(), requestTime)
	defer cancel()
	if !isLive(r) {
		c.sampler.visitedNow()
	}
	data := overviewData{overview: c.sampler.overview(ctx), Name: r.URL.Query().Get("name")}
	data.choose()
	going := map[string][]Run{}
	if who.CanView() {
		for _, run := range c.runs.list() {
			if run.State.IsBusy() {
				going[run.Queue] = append(going[run.Queue], run)
			}
		}
	}
	for i := range data.Rows {
		row := &data.Rows[i]
		row.Known, row.Past, row.Runs = c.known(row.Queue), c.sampler.pastOf(row.Queue), going[row.Queue]
	}
	if data.Err != nil {
		data.Problem = problemOf(data.Err)
	}
	var query url.Values
	if data.Name != "" {
		query = url.Values{"name": {data.Name}}
	}

	title := "Queues: " + units.Thousands(data.Messages)

	return c.render(w, http.StatusOK, "overview", page{Title: title, Visitor: who, Live: true, Waits: true,
		Again: again("", query), Data: data})
}

// choose counts the queues and chooses which are shown.
func (d *overviewData) choose() {
	for _, q := range d.Queues {
		switch {
		case q.Messages == nil:
			d.Unknown = d.Unknown || !q.Missing
		case *q.Messages > 0:
			d.Messages += *q.Messages
			d.Full++
		}
		if strings.Contains(q.Queue, d.Name) {
			d.Rows = append(d.Rows, queueRow{queueState: q})
		}
	}
	slices.SortStableFunc(d.Rows, func(a, b queueRow) int { return cmp.Compare(b.depth(), a.depth()) })
	if len(d.Rows) > mostQueues {
		d.More = len(d.Rows) - mostQueues
		d.Rows = d.Rows[:mostQueues]
	}
}

// depth is how many messages it has, and less than any if that is not known.
func (r queueRow) depth() int64 {
	if r.Messages == nil {
		return -1
	}

	return *r.Messages
}

// busy is how many runs count, run or stop.
func (k *runs) busy() int {
	n := 0
	for _, run := range k.list() {
		if run.State.IsBusy() {
			n++
		}
	}

	return n
}
