package dlqweb

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
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
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/units"
)

const (
	// mostBody is how much of a text a page shows, mostHex how much of what is no text.
	mostBody = 64 << 10
	mostHex  = 4 << 10
	// mostEdit is the largest body that a page lets somebody edit.
	mostEdit = 256 << 10
)

// messageAt gets one dead letter by its UUID; by its position where it has none.
func (c *Console) messageAt(ctx context.Context, t target, uuid, position string) (*dlq.DeadLetter, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	if c.looks.isHeld(t.Queue) {
		return nil, heldByRun()
	}
	client, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	queue := client.DeadLetterQueue(t.Queue, t.MainQueue)
	if uuid != "" {
		l, err := queue.Get(ctx, uuid)
		if err != nil {
			return nil, err
		}
		return c.redacted(&l), nil
	}
	wanted, err := strconv.Atoi(position)
	if err != nil || wanted < 1 {
		return nil, badRequest("position", "1 or more, or uuid", strconv.Quote(position))
	}
	for l, err := range queue.Browse(ctx, dlq.Filter{}) {
		if err != nil {
			return nil, err
		}
		if l.Position == wanted {
			return c.redacted(&l), nil
		}
	}

	return nil, notFound("A dead letter at this position")
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

// bodyShown is a body as a page shows it.
type bodyShown struct {
	Kind string // JSON, text, hex, empty
	Text string
	Cut  bool
	Size int
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

func (c *Console) pageMessage(w http.ResponseWriter, r *http.Request, who visitor) error {
	query := r.URL.Query()
	t, err := c.targetOf(query)
	if err != nil {
		return err
	}
	l, err := c.messageAt(r.Context(), t, query.Get("uuid"), query.Get("position"))
	if err != nil {
		return err
	}
	data := struct {
		target
		*dlq.DeadLetter
		Fingerprint dlq.Fingerprint
		Facts       []fact
		Timeline    []step
		Headers     []headerLine
		Properties  []fact
		Body        bodyShown
		CanEdit     bool
		Raw         string
		Types       []string
		ThisOne     url.Values
	}{
		target: t, DeadLetter: l, Fingerprint: l.Fingerprint(), Facts: factsOf(l, who), Timeline: timelineOf(l),
		Headers: headersOf(l.Message.Headers), Properties: propertiesOf(&l.Message), Body: showBody(l.Message.Body),
		Types: editableTypes,
	}
	if l.UUID != "" {
		data.ThisOne = url.Values{"uuid": {l.UUID}}
		data.CanEdit = c.config.acts() && who.CanReplay() && l.Unreadable == "" && c.config.Redact == nil &&
			len(l.Message.Body) <= mostEdit && isText(l.Message.Body)
		data.Raw = string(l.Message.Body)
	}

	return c.render(w, http.StatusOK, "message", page{Title: cmp.Or(l.UUID, "A dead letter"), Visitor: who, Data: data})
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

// showBody chooses how a body is shown: JSON that is not too long is indented, text is as it is,
// anything else is a dump.
func showBody(body []byte) bodyShown {
	shown := bodyShown{Size: len(body)}
	switch {
	case len(body) == 0:
		shown.Kind = "empty"
	case len(body) <= mostBody && json.Valid(body) && indent(&shown, body):
		shown.Kind = "JSON"
	case utf8.Valid(body) && !bytes.ContainsRune(body, 0):
		shown.Kind, shown.Cut = "text", len(body) > mostBody
		shown.Text = cut(string(body), mostBody)
	default:
		shown.Kind, shown.Cut = "hex", len(body) > mostHex
		shown.Text = hex.Dump(body[:min(len(body), mostHex)])
	}

	return shown
}

// indent fails where the indentation is most of the text, as of JSON that is nested for that.
func indent(shown *bodyShown, body []byte) bool {
	const most = 4 * mostBody
	depth, deepest := 0, 0
	for _, c := range body {
		switch c {
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
	}
	if deepest > 100 {
		return false
	}
	var out bytes.Buffer
	if err := json.Indent(&out, body, "", "  "); err != nil || out.Len() > most {
		return false
	}
	shown.Text = out.String()

	return true
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
	l, err := c.messageAt(r.Context(), t, query.Get("uuid"), query.Get("position"))
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
