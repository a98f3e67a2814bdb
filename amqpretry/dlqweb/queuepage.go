package dlqweb

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb/internal/snapshot"
)

// pageSize is how many dead letters a page lists, mostPage how many the API does.
const (
	pageSize = 50
	mostPage = 500
)

// viewOf is what somebody wants to see of a queue: which dead letters, in which order, from where.
type viewOf struct {
	target
	Filter url.Values
	Sort   snapshot.Order
	Page   int // 1 is the first
	// Since marks the causes that are new since then.
	Since time.Time
	// SinceText is Since as it was given.
	SinceText string

	filter dlq.Filter
}

// Query is the view as a query, without the page.
func (v viewOf) Query() url.Values {
	query := url.Values{"queue": {v.Queue}}
	for key, values := range v.Filter {
		query[key] = values
	}
	if v.Sort != snapshot.Oldest {
		query.Set("sort", string(v.Sort))
	}
	if v.SinceText != "" {
		query.Set("since", v.SinceText)
	}

	return query
}

// With is the query of the view with another value of a name; without it where the value is empty.
func (v viewOf) With(pairs ...string) url.Values {
	query := v.Query()
	for i := 0; i+1 < len(pairs); i += 2 {
		if query.Del(pairs[i]); pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}

	return query
}

// viewIn reads a view from a query.
func (c *Console) viewIn(query url.Values, who visitor) (viewOf, error) {
	t, err := c.targetOf(query)
	if err != nil {
		return viewOf{}, err
	}
	v := viewOf{target: t, Filter: filterValues(query), Page: 1, Sort: snapshot.Order(query.Get("sort")),
		SinceText: strings.TrimSpace(query.Get("since"))}
	if v.filter, err = parseFilter(v.Filter, who); err != nil {
		return v, err
	}
	if !slices.Contains(snapshot.Orders(), v.Sort) {
		return v, badRequest("sort", "newest, largest, replays or nothing", strconv.Quote(string(v.Sort)))
	}
	if text := query.Get("page"); text != "" {
		if v.Page, err = strconv.Atoi(text); err != nil || v.Page < 1 {
			return v, badRequest("page", "1 or more", strconv.Quote(text))
		}
	}
	v.Since, err = parseTime("since", v.SinceText, time.Now(), false)

	return v, err
}

// parseTime reads a time: a time of day (03:02, UTC), one with its day, or how long ago. In the
// future it is the next such time of day, or in how long.
func parseTime(field, text string, now time.Time, future bool) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	now = now.UTC()
	if at, err := time.Parse("15:04", text); err == nil {
		day := time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), 0, 0, time.UTC)
		switch {
		case future && !day.After(now):
			day = day.AddDate(0, 0, 1)
		case !future && day.After(now):
			day = day.AddDate(0, 0, -1)
		}
		return day, nil
	}
	for _, layout := range []string{"2006-01-02 15:04", "2006-01-02T15:04", time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	filter, err := dlq.ParseFilter(url.Values{"newer-than": {text}})
	if err != nil {
		return time.Time{}, badRequest(field, "a time of day (03:02) or 2026-11-29 03:02, in UTC, or a duration (2h)",
			strconv.Quote(text))
	}
	if future {
		return now.Add(filter.NewerThan), nil
	}

	return now.Add(-filter.NewerThan), nil
}

// find gives what matches a view; nil before the queue was read.
func (c *Console) find(ctx context.Context, v viewOf, now seen) (*snapshot.Result, error) {
	if now.Snapshot == nil {
		return nil, nil
	}
	result, err := now.Find(ctx, v.Filter.Encode(), v.filter)
	if errors.Is(err, snapshot.ErrNotKept) {
		return nil, &problem{Status: http.StatusServiceUnavailable, Title: "Cannot search in messages",
			Detail: "The console has no room for whole messages, so it can only search what it has in memory: " +
				"reasons, causes, handlers, topics, types, error texts, times and counts.",
			Do: "Give the console a folder it can write to: Config.Folder, or the folder for temporary files."}
	}

	return result, err
}

// queuePage is what the page of a queue has.
type queuePage struct {
	viewOf
	seen
	Result  *snapshot.Result
	State   queueState
	Problem *problem
	Busy    string // the run that works on it
	Rows    []snapshot.Summary
	Pages   int
	Causes  []causeRow
	New     int // causes that are new
	Bars    []bar
	Chips   []chip
	Choices []string
	// Arrived is how many more messages the queue has than the snapshot; fewer if it is negative.
	Arrived int64
	Closed  bool // the visitor sees no error texts
}

// causeRow is a group in the table of causes.
type causeRow struct {
	*snapshot.Group
	New bool
	// Replay is the query of a careful replay of it.
	Replay url.Values
}

// IsParked tells that all of its messages are parked.
func (r causeRow) IsParked() bool { return r.Parked == r.Messages }

// AddressOf is the query of the page of a message in the view.
func (p queuePage) AddressOf(position int) url.Values { return placeOf(p.viewOf, p.seen, position) }

// Turn is the query of the page so many further on, To that of a page.
func (p queuePage) Turn(by int) url.Values { return p.To(p.Page + by) }

// To is the query of a page.
func (p queuePage) To(page int) url.Values { return p.With("page", strconv.Itoa(page)) }

// sortOf is a link that sorts.
type sortOf struct {
	Name  string
	Query url.Values
	Here  bool
}

// Sorts are the orders of the list.
func (p queuePage) Sorts() []sortOf {
	var sorts []sortOf
	for i, name := range []string{"oldest first", "newest first", "largest", "most replayed"} {
		order := snapshot.Orders()[i]
		sorts = append(sorts, sortOf{name, p.With("sort", string(order)), order == p.Sort})
	}

	return sorts
}

// pageQueue shows the dead letters of a queue, or the messages that wait for its main queue.
func (c *Console) pageQueue(w http.ResponseWriter, r *http.Request, who visitor) error {
	query, name := r.URL.Query(), strings.TrimPrefix(r.URL.Path, "/")
	if query.Has("search") {
		return c.search(w, query, who, name)
	}
	v, err := c.viewIn(query, who)
	if err != nil {
		return err
	}
	if v.Waits = name == "waiting"; v.Waits && !who.CanView() {
		return who.needs(RoleView)
	}
	wanted := wantNew
	switch {
	case isLive(r), v.Waits && !query.Has("refresh"):
		wanted = wantNothing
	case query.Has("refresh"):
		wanted = wantAnother
	}
	now := c.snapshots.view(v.target, wanted, query.Get("refresh"))
	if now.Snapshot == nil || wanted == wantAnother {
		now = c.snapshots.wait(r.Context(), v.target, now, patience)
	}
	p := queuePage{viewOf: v, seen: now, Closed: !who.CanView()}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	sample := c.sampler.overview(ctx)
	p.State, _ = sample.state(v.target)
	c.runs.mu.Lock()
	p.Busy = c.runs.busyWith(v.Queue)
	c.runs.mu.Unlock()
	if err := cmp.Or(now.Err, sample.Err); err != nil {
		p.Problem = problemOf(err)
	}
	if p.Result, err = c.find(r.Context(), v, now); err != nil {
		p.Problem = problemOf(err)
	}
	p.Chips, p.Choices = v.chips(now.Snapshot, who), choices(now.Snapshot, who, v.Waits)
	if p.Result != nil {
		p.fill(who)
	}
	if p.Result != nil && !v.Waits && p.State.Messages != nil && p.Busy == "" && sample.At.After(now.Ended) {
		p.Arrived = *p.State.Messages - int64(now.Len())
	}

	title := v.Queue
	if v.Waits {
		title = "Messages that wait for " + v.MainQueue
	}

	return c.render(w, http.StatusOK, name, page{Title: title, Visitor: who, Live: true,
		Waits: now.Reading != nil, Again: again(name, query), Data: p})
}

// fill makes the tables of what was found.
func (p *queuePage) fill(who visitor) {
	p.Pages = max(1, (p.Result.Matched+pageSize-1)/pageSize)
	p.Page = min(p.Page, p.Pages)
	order := p.Sort
	if p.Waits {
		order = snapshot.Soonest
	}
	p.Rows = rowsFor(p.Snapshot.Page(p.Result, order, (p.Page-1)*pageSize, pageSize), who)
	for _, g := range p.Result.Groups {
		row := causeRow{Group: groupFor(g, who), Replay: careful(p.viewOf, p.ID(), g)}
		if row.New = !p.Since.IsZero() && !g.Oldest.IsZero() && !g.Oldest.Before(p.Since); row.New {
			p.New++
		}
		p.Causes = append(p.Causes, row)
	}
	slices.SortStableFunc(p.Causes, func(a, b causeRow) int {
		return cmp.Or(rank(!a.IsParked())-rank(!b.IsParked()), rank(a.New)-rank(b.New))
	})
	p.Bars = p.bars()
}

func rank(first bool) int {
	if first {
		return 0
	}

	return 1
}

// A careful replay sends some messages first, and the others at a rate that a service bears.
const (
	carefulCanary = 10
	carefulRate   = "20/s"
)

// careful is the query of a replay of one cause: of those of its messages that the view shows.
func careful(v viewOf, snapshotID string, g *snapshot.Group) url.Values {
	query := maps.Clone(v.Filter)
	for name, value := range map[string]string{"kind": string(dlq.Replay), "queue": v.Queue, "fingerprint": g.ID,
		"rate": carefulRate} {
		query.Set(name, value)
	}
	if snapshotID != "" {
		query.Set("snapshot", snapshotID)
	}
	if g.Messages > carefulCanary {
		query.Set("canary", strconv.Itoa(carefulCanary))
	}

	return query
}

// groupFor is what somebody may see of a cause.
func groupFor(g *snapshot.Group, who visitor) *snapshot.Group {
	if who.CanView() {
		return g
	}
	shown := *g
	shown.Pattern, shown.Parking = "", nil

	return &shown
}

// rowsFor is what somebody may see of the messages of a list.
func rowsFor(rows []snapshot.Summary, who visitor) []snapshot.Summary {
	for i := range rows {
		if !who.CanView() {
			rows[i].Error, rows[i].Unreadable = "", ""
		}
	}

	return rows
}

// bar is one of the histogram of ages.
type bar struct {
	Name                 string
	N                    int
	X, Y, Height, Center int
	// Query is the view with only these.
	Query url.Values
	// New ones are younger than Since.
	New bool
}

const (
	barWidth, barGap, barsHeight, barsTop = 56, 8, 80, 16
)

func (p *queuePage) bars() []bar {
	most := max(1, slices.Max(p.Result.Ages.ByBucket[:]))
	bounds := snapshot.AgeBounds()
	var bars []bar
	for i, n := range p.Result.Ages.ByBucket {
		name, older, newer := "older", "", ""
		if i < len(bounds) {
			name, newer = "< "+bounds[i].Name, bounds[i].Filter
		}
		if i > 0 {
			older = bounds[i-1].Filter
		}
		height := n * barsHeight / most
		if n > 0 {
			height = max(height, 2)
		}
		x := i * (barWidth + barGap)
		b := bar{Name: name, N: n, X: x, Y: barsHeight - height + barsTop, Height: height, Center: x + barWidth/2,
			Query: p.With("older-than", older, "newer-than", newer)}
		b.New = !p.Since.IsZero() && i < len(bounds) && p.Began.Add(-bounds[i].Most).Compare(p.Since) >= 0
		bars = append(bars, b)
	}

	return bars
}
