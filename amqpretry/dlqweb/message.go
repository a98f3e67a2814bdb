package dlqweb

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb/internal/snapshot"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// mostEdit is the largest body that a page lets somebody edit.
const mostEdit = 256 << 10

// mostSummary is how many bytes of a text are told.
const mostSummary = 300

// messageIn finds one dead letter in a snapshot: by its UUID, at its position where that has the
// UUID, or by the position of that snapshot alone.
func (c *Console) messageIn(ctx context.Context, t target, now seen, query url.Values) (int, *dlq.DeadLetter, error) {
	uuid, position := query.Get("uuid"), 0
	if text := query.Get("position"); text != "" {
		var err error
		if position, err = strconv.Atoi(text); err != nil || position < 1 {
			return 0, nil, badRequest("position", "1 or more", strconv.Quote(text))
		}
	}
	if uuid == "" && position == 0 {
		return 0, nil, badRequest("uuid", "a UUID, or position", "neither")
	}
	if id := query.Get("snapshot"); uuid == "" && id != "" && id != now.ID() {
		return 0, nil, &problem{Status: http.StatusNotFound, Title: "The queue was read again",
			Detail: "This message has no UUID, and positions are different now.",
			Do:     "Open the queue, and choose the message again."}
	}
	var l *dlq.DeadLetter
	var err error
	if position > 0 && position <= now.Len() {
		if l, err = c.whole(ctx, t, now, position); err != nil {
			return 0, nil, err
		}
	}
	if l == nil && uuid == "" {
		return 0, nil, notFound("A dead letter at this position")
	}
	if l == nil || uuid != "" && l.UUID != uuid {
		if position = now.Position(uuid); position == 0 {
			return 0, nil, problemOf(&dlq.NotFoundError{Queue: t.Queue, UUID: uuid, Seen: now.Len()})
		}
		l, err = c.whole(ctx, t, now, position)
	}

	return position, l, err
}

// whole is the dead letter at a position. Where the snapshot had no room for it, the queue is read
// up to it.
func (c *Console) whole(ctx context.Context, t target, now seen, position int) (*dlq.DeadLetter, error) {
	l, err := now.Load(position)
	if !errors.Is(err, snapshot.ErrNotKept) {
		return l, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	release, err := c.snapshots.hold(ctx, t, func() {})
	if err != nil {
		return nil, err
	}
	defer release()
	client, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	err = client.DeadLetterQueue(t.Queue, t.MainQueue).Read(ctx, func(dlq.Stat) {}, func(found *dlq.DeadLetter) bool {
		if shown := c.redacted(found); now.Is(position, shown) {
			l = shown
		}
		return l == nil
	})
	if err == nil && l == nil {
		err = &dlq.NotFoundError{Queue: t.Queue, UUID: now.Summary(position).UUID, Seen: now.Len()}
	}

	return l, err
}

// fact is a name with a value.
type fact struct {
	Name, Value string
	At          time.Time
}

// headerLine is a header in a table.
type headerLine struct {
	Name, Type, Value string
	// Own ones are the message's: not this library's, and not the broker's.
	Own, Editable bool
}

// step is one failed call in a timeline.
type step struct {
	Number int
	At     time.Time
	// Waited is the time since the call before; empty for the first.
	Waited, Type, Error, Reason string
	// Skipped is how many calls before it are not told.
	Skipped int
}

// messagePage is what the page of a message has.
type messagePage struct {
	viewOf // that it is in
	seen
	*dlq.DeadLetter
	Queue       string // the dead-letter queue
	Fingerprint dlq.Fingerprint
	Cause       string
	Facts       []fact
	Timeline    []step
	Headers     []headerLine // its own
	Added       []headerLine // by this library and the broker
	Properties  []fact
	Body        bodyShown
	CanEdit     bool
	Raw         string
	Types       []string
	ThisOne     url.Values
	// Before and Behind are the addresses of its neighbours in the view; nil where there is none.
	Before, Behind, Address url.Values
	SameCause               int
}

func (c *Console) pageMessage(w http.ResponseWriter, r *http.Request, who visitor) error {
	query := r.URL.Query()
	uuid := query.Get("uuid")
	query.Del("uuid") // names the message, and filters nothing
	v, err := c.viewIn(query, who)
	if err != nil {
		return err
	}
	wanted := wantOne
	if isLive(r) {
		wanted = wantNothing
	}
	now := c.snapshots.view(v.target, wanted, "")
	if now.isBehind(wantOne) {
		now = c.snapshots.wait(r.Context(), v.target, now, patience)
	}
	if now.Snapshot == nil {
		return c.pageReading(w, r, v.target, now, who)
	}
	query.Set("uuid", uuid)
	position, l, err := c.messageIn(r.Context(), v.target, now, query)
	if err != nil {
		return err
	}
	p := messagePage{
		viewOf: v, seen: now, DeadLetter: l, Queue: v.Queue, Fingerprint: l.Fingerprint(),
		Facts: factsOf(l, who), Timeline: timelineOf(l),
		Properties: propertiesOf(&l.Message), Body: showBody(&l.Message, query.Get("as")), Types: editableTypes,
		Address: placeOf(v, now, position),
	}
	p.Cause = causeText(p.Fingerprint, who)
	for _, line := range headersOf(l.Message.Headers) {
		if line.Own {
			p.Headers = append(p.Headers, line)
		} else {
			p.Added = append(p.Added, line)
		}
	}
	if found, err := c.find(r.Context(), v, now); err == nil && found != nil {
		before, behind := now.Around(found, v.Sort, position)
		p.Before, p.Behind = placeOf(v, now, before), placeOf(v, now, behind)
	}
	for _, g := range now.Everything().Groups {
		if g.ID == p.Fingerprint.ID {
			p.SameCause = g.Messages
		}
	}
	if l.UUID != "" {
		p.ThisOne = url.Values{"uuid": {l.UUID}, "snapshot": {now.ID()}}
		p.CanEdit = c.config.acts() && who.CanReplay() && l.Unreadable == "" && c.config.Redact == nil &&
			len(l.Message.Body) <= mostEdit && isText(l.Message.Body)
		p.Raw = string(l.Message.Body)
	}

	return c.render(w, http.StatusOK, "message", page{Title: cmp.Or(l.UUID, "A dead letter"), Visitor: who, Data: p})
}

// placeOf is the query of a message's page; nil for position 0.
func placeOf(v viewOf, now seen, position int) url.Values {
	if position == 0 {
		return nil
	}
	v.Filter = maps.Clone(v.Filter)
	delete(v.Filter, "uuid")
	query, summary := v.Query(), now.Summary(position)
	query.Set("position", strconv.Itoa(position))
	if summary.UUID != "" && !summary.Cut {
		query.Set("uuid", summary.UUID)
	} else {
		query.Set("snapshot", now.ID())
	}

	return query
}

// pageReading tells how far the read is that a page waits for.
func (c *Console) pageReading(w http.ResponseWriter, r *http.Request, t target, now seen, who visitor) error {
	if now.Reading == nil {
		return cmp.Or(now.Err, error(heldByRun()))
	}

	return c.render(w, http.StatusOK, "reading", page{Title: t.Queue, Visitor: who, Live: true, Waits: true,
		Again: again("message", r.URL.Query()), Data: struct {
			target
			seen
		}{t, now}})
}

// editableTypes are those whose values a form can have.
var editableTypes = []string{"string", "int64", "int32", "int16", "float64", "bool", "time"}

// isText tells what a browser sends back as it was: it makes CR LF of each end of a line.
func isText(body []byte) bool { return utf8.Valid(body) && !bytes.ContainsAny(body, "\x00\r") }

func factsOf(l *dlq.DeadLetter, who visitor) []fact {
	facts := []fact{
		{Name: "Reason", Value: string(l.Reason)}, {Name: "Handler", Value: l.Handler}, {Name: "Topic", Value: l.Topic},
		{Name: "Failed in queue", Value: l.Queue},
		{Name: "Handler calls", Value: strconv.Itoa(l.Calls)}, {Name: "Replays", Value: strconv.Itoa(l.Replays)},
		{Name: "First failure", At: l.FirstFailure}, {Name: "Last failure", At: l.LastFailure},
		{Name: "Deadline", At: l.Deadline},
	}
	if !who.CanView() {
		return slices.DeleteFunc(facts, fact.isEmpty)
	}
	facts = append(facts, []fact{
		{Name: "Host", Value: l.Host},
		{Name: "First came by", Value: routeText(dlq.Route{Exchange: l.Exchange, RoutingKey: l.RoutingKey})},
		{Name: "Came here by", Value: routeText(l.CameBy)}, {Name: "Expiration", Value: l.Expiration},
		{Name: "User", Value: l.UserID}, {Name: "Trace", Value: l.Trace},
		{Name: "Removed headers", Value: l.Removed},
		{Name: "Headers that cannot be read", Value: l.Unreadable},
	}...)

	return slices.DeleteFunc(facts, fact.isEmpty)
}

func (f fact) isEmpty() bool { return f.Value == "" && f.At.IsZero() }

func routeText(r dlq.Route) string {
	switch {
	case r == dlq.Route{}:
		return ""
	case r.Exchange == "":
		return "the default exchange, key " + strconv.Quote(r.RoutingKey)
	default:
		return r.Exchange + ", key " + strconv.Quote(r.RoutingKey)
	}
}

func timelineOf(l *dlq.DeadLetter) []step {
	var steps []step
	for i, call := range l.History {
		s := step{Number: call.Number, At: call.At, Type: call.Type, Error: call.Error, Reason: string(call.Reason)}
		if i > 0 {
			before := l.History[i-1]
			s.Skipped = max(0, call.Number-before.Number-1)
			if !call.At.IsZero() && !before.At.IsZero() {
				s.Waited = units.Elapsed(call.At.Sub(before.At))
			}
		}
		steps = append(steps, s)
	}

	return steps
}

// headersOf has the message's own headers first.
func headersOf(table amqp091.Table) []headerLine {
	added := func(name string) bool { return header.IsOwn(name) || header.IsPoison(name) || header.IsBroker(name) }
	var lines []headerLine
	for _, name := range slices.Sorted(maps.Keys(table)) {
		kind := codec.HeaderType(table[name])
		lines = append(lines, headerLine{Name: name, Type: kind, Value: codec.HeaderText(table[name]),
			Own: !added(name), Editable: !added(name) && isEditable(name, kind, codec.HeaderText(table[name]))})
	}
	slices.SortStableFunc(lines, func(a, b headerLine) int {
		switch {
		case a.Own == b.Own:
			return 0
		case a.Own:
			return -1
		default:
			return 1
		}
	})

	return lines
}

// isEditable tells a header that an input of a form sends back as it was.
func isEditable(name, kind, text string) bool {
	odd := func(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }

	return slices.Contains(editableTypes, kind) && strings.IndexFunc(name+text, odd) < 0
}

func propertiesOf(m *amqp091.Publishing) []fact {
	facts := []fact{
		{Name: "Content type", Value: m.ContentType}, {Name: "Content encoding", Value: m.ContentEncoding},
		{Name: "Message ID", Value: m.MessageId}, {Name: "Correlation ID", Value: m.CorrelationId},
		{Name: "Reply to", Value: m.ReplyTo}, {Name: "Type", Value: m.Type}, {Name: "App ID", Value: m.AppId},
		{Name: "Timestamp", At: m.Timestamp}, {Name: "Expiration", Value: m.Expiration},
	}
	if m.Priority > 0 {
		facts = append(facts, fact{Name: "Priority", Value: strconv.Itoa(int(m.Priority))})
	}

	return slices.DeleteFunc(facts, fact.isEmpty)
}

// getBody gives a whole body as a file.
func (c *Console) getBody(w http.ResponseWriter, r *http.Request, who visitor) error {
	if err := who.needs(RoleView); err != nil {
		return err
	}
	query := r.URL.Query()
	t, err := c.targetOf(query)
	if err != nil {
		return err
	}
	what := "body of " + cmp.Or(query.Get("uuid"), query.Get("position"))
	if err := c.auditDownload(r.Context(), who, t, what); err != nil {
		return err
	}
	now, err := c.awaited(r, t, wantOne)
	if err != nil {
		return err
	}
	_, l, err := c.messageIn(r.Context(), t, now, query)
	if err != nil {
		return err
	}
	asFile(w, cmp.Or(l.UUID, "body")+".bin")
	_, err = w.Write(l.Message.Body)

	return err
}

// asFile makes an answer one that a browser keeps, and never shows.
func asFile(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
	w.Header().Set("Content-Security-Policy", "sandbox; default-src 'none'")
}

// getFile gives the undo file or the export of a run.
func (c *Console) getFile(w http.ResponseWriter, r *http.Request, who visitor) error {
	id := cmp.Or(r.PathValue("id"), r.URL.Query().Get("id"))
	found, err := c.runs.find(id)
	if err != nil {
		return err
	}
	run := found.snapshot()
	name, role := fileUndo, RoleReplay // an undo file is not redacted
	if run.Kind == kindExport {
		name, role = fileExport, RoleView
	}
	if err := who.needs(role); err != nil {
		return err
	}
	if err := c.auditDownload(r.Context(), who, target{Queue: run.Queue}, id+"/"+name); err != nil {
		return err
	}
	file, err := c.runs.open(id, name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	asFile(w, id+"-"+name)
	http.ServeContent(w, r, "", time.Time{}, file)

	return nil
}
