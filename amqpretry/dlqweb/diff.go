package dlqweb

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// difference is a line of a diff.
type difference struct {
	Sign string // "+", "-", or " "
	Text string
}

// mostDiff is how many lines each text may have to be compared line by line.
const mostDiff = 2000

// diff compares two texts line by line.
func diff(before, after string) []difference {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	var lines []difference
	add := func(sign string, all []string) {
		for _, text := range all {
			lines = append(lines, difference{sign, text})
		}
	}
	begin := 0
	for begin < min(len(a), len(b)) && a[begin] == b[begin] {
		begin++
	}
	end := 0
	for end < min(len(a), len(b))-begin && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	add(" ", a[:begin])
	a, b, rest := a[begin:len(a)-end], b[begin:len(b)-end], a[len(a)-end:]
	if len(a) > mostDiff || len(b) > mostDiff {
		add("-", a)
		add("+", b)
	} else {
		lines = append(lines, longestCommon(a, b)...)
	}
	add(" ", rest)

	return lines
}

// longestCommon keeps the longest common subsequence.
func longestCommon(a, b []string) []difference {
	length := make([][]int, len(a)+1) // of what is common to a[i:] and b[j:]
	for i := range length {
		length[i] = make([]int, len(b)+1)
	}
	for i, x := range slices.Backward(a) {
		for j, y := range slices.Backward(b) {
			if x == y {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	var lines []difference
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			lines = append(lines, difference{" ", a[i]})
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || length[i+1][j] >= length[i][j+1]):
			lines = append(lines, difference{"-", a[i]})
			i++
		default:
			lines = append(lines, difference{"+", b[j]})
			j++
		}
	}

	return lines
}

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
		Body    []difference
		Headers []difference
		Nothing bool
	}{target: t, UUID: l.UUID, Edit: string(text)}
	if changed.Body != nil {
		data.Body = diff(before, body)
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

func (e *change) headerDiff(before []headerLine) []difference {
	var lines []difference
	for _, line := range before {
		_, set := e.Set[line.Name]
		if set || slices.Contains(e.Remove, line.Name) {
			lines = append(lines, difference{"-", line.Name + " (" + line.Type + "): " + line.Value})
		}
	}
	for _, name := range sortedKeys(e.Set) {
		lines = append(lines, difference{"+", name + " (" + e.Set[name].Type + "): " + e.Set[name].Value})
	}

	return lines
}
