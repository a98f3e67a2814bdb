package dlqweb

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/diff"
)

// postDiff shows what an edit changes, before it is planned.
func (c *Console) postDiff(w http.ResponseWriter, r *http.Request, who visitor) error {
	if err := who.needs(RoleReplay); err != nil {
		return err
	}
	if c.config.Redact != nil {
		return notEditable()
	}
	form, err := readForm(w, r)
	if err != nil {
		return err
	}
	t, err := c.target(form.Get("queue"), form.Get("main-queue"))
	if err != nil {
		return err
	}
	now, err := c.awaited(r, t, wantOne)
	if err != nil {
		return err
	}
	_, l, err := c.messageIn(r.Context(), t, now, url.Values{"uuid": {form.Get("uuid")}})
	if err != nil {
		return err
	}
	before := string(l.Message.Body)
	// A browser sends each end of a line as CR LF, whatever it was.
	body := strings.ReplaceAll(form.Get("body"), "\r\n", "\n")
	changed := &change{}
	if body != before {
		changed.Body = &body
	}
	changed.headers(headersOf(l.Message.Headers), form)
	if err := changed.Validate(); err != nil {
		return err
	}
	text, err := json.Marshal(changed.Change)
	if err != nil {
		return err
	}
	data := struct {
		target
		UUID    string
		Edit    string
		Body    []diff.Line
		Headers []diff.Line
		Nothing bool
	}{target: t, UUID: l.UUID, Edit: string(text)}
	if changed.Body != nil {
		data.Body = diff.Lines(before, body)
	}
	data.Headers = changed.headerDiff(headersOf(l.Message.Headers))
	data.Nothing = changed.Body == nil && len(data.Headers) == 0

	return c.render(w, http.StatusOK, "diff", page{Title: "What changes", Visitor: who, Data: data})
}

// change is an edit that somebody makes in a form.
type change struct{ dlq.Change }

// headers takes what a form says of them: each row has a name, a type and a value. One without a
// name is removed.
func (e *change) headers(before []headerLine, form url.Values) {
	names, types, values := form["header-name"], form["header-type"], form["header-value"]
	kept := map[string]dlq.HeaderValue{}
	for i := range min(len(names), len(types), len(values)) {
		if names[i] != "" {
			kept[names[i]] = dlq.HeaderValue{Type: types[i], Value: strings.ReplaceAll(values[i], "\r\n", "\n")}
		}
	}
	for _, line := range before {
		now, is := kept[line.Name]
		switch {
		case !line.Editable:
			delete(kept, line.Name)
		case !is:
			e.Remove = append(e.Remove, line.Name)
		case now == dlq.HeaderValue{Type: line.Type, Value: line.Value}:
			delete(kept, line.Name)
		}
	}
	if len(kept) > 0 {
		e.Set = kept
	}
}

func (e *change) headerDiff(before []headerLine) []diff.Line {
	var lines []diff.Line
	for _, line := range before {
		_, set := e.Set[line.Name]
		if set || slices.Contains(e.Remove, line.Name) {
			lines = append(lines, diff.Line{Sign: "-", Text: line.Name + " (" + line.Type + "): " + line.Value})
		}
	}
	for _, name := range sortedKeys(e.Set) {
		lines = append(lines, diff.Line{Sign: "+", Text: name + " (" + e.Set[name].Type + "): " + e.Set[name].Value})
	}

	return lines
}
