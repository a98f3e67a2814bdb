package dlqweb

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/units"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed static
var staticFiles embed.FS

// version changes with the files, so that a browser never has old ones.
var version = func() string {
	sum := sha256.New()
	_ = fs.WalkDir(staticFiles, "static", func(path string, _ fs.DirEntry, _ error) error {
		text, _ := staticFiles.ReadFile(path)
		_, _ = sum.Write(text)
		return nil
	})

	return hex.EncodeToString(sum.Sum(nil)[:6])
}()

var templates = func() map[string]*template.Template {
	all := map[string]*template.Template{}
	for _, name := range []string{"overview", "queue", "waiting", "message", "plan", "diff", "runs", "run", "problem",
		"reading"} {
		all[name] = template.Must(template.New("layout.html").Funcs(functions).ParseFS(templateFiles,
			"templates/layout.html", "templates/parts.html", "templates/"+name+".html"))
	}

	return all
}()

var functions = template.FuncMap{
	"ago":       func(at time.Time) template.HTML { return ago(at, false) },
	"due":       func(at time.Time) template.HTML { return ago(at, true) },
	"thousands": func(n any) string { return thousands(n) },
	"bytes":     sizeOf,
	"depth":     depth,
	"int64":     func(n int64) int { return int(n) },
	"deref":     func(n *int) int { return *n },
	"orNow":     func(id string) string { return cmp.Or(id, anySnapshot) },
	"int":       func(n *int64) int { return int(*n) },
	"exact":     func(at time.Time) string { return at.UTC().Format("2006-01-02 15:04 UTC") },
	"share":     func(n, of int) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(max(of, 1))) },
	"many":      many,
	"rate":      units.Rate,
	"short":     short,
	"link":      link,
	"version":   func() string { return version },
	"kind":      kindText,
	"stepOf":    stepOf,
	"orDash": func(text string) string {
		if text == "" {
			return "–"
		}
		return text
	},
}

func thousands(n any) string {
	switch n := n.(type) {
	case int:
		return units.Thousands(n)
	case int64:
		return units.Thousands(n)
	default:
		return fmt.Sprint(n)
	}
}

// many is a number of things, which may be the *int64 of a queue.
func many(n any, thing string) string {
	switch n := n.(type) {
	case *int64:
		return units.Many(int(*n), thing)
	case int64:
		return units.Many(int(n), thing)
	default:
		return units.Many(n.(int), thing) //nolint:forcetypeassert // a template with another type is wrong
	}
}

// ago is a time for people, with the exact one on hover and for the script that keeps it up to
// date. Only a time that is due is in the next minute: else clocks differ.
func ago(at time.Time, due bool) template.HTML {
	if at.IsZero() {
		return `<span class="none">not known</span>`
	}
	exact, class := at.UTC().Format("2006-01-02 15:04:05 UTC"), ""
	if due {
		class = ` class="due"`
	}

	return template.HTML(fmt.Sprintf(`<time%s datetime="%s" title="%s">%s</time>`, //nolint:gosec // times only
		class, at.UTC().Format(time.RFC3339), exact, agoText(time.Since(at), due)))
}

func agoText(since time.Duration, due bool) (text string) {
	const day = 24 * time.Hour
	switch d := since.Abs(); {
	case d < time.Second, since < 0 && d < time.Minute && !due:
		return "now"
	case d < time.Minute:
		text = fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		text = fmt.Sprintf("%d min", d/time.Minute)
	case d < 2*day:
		text = fmt.Sprintf("%d h", d/time.Hour)
	default:
		text = fmt.Sprintf("%d d", d/day)
	}
	if since < 0 {
		return "in " + text
	}

	return text + " ago"
}

func sizeOf(n any) string {
	var size float64
	switch n := n.(type) {
	case int:
		size = float64(n)
	case int64:
		size = float64(n)
	}
	switch {
	case size < 1<<10:
		return strconv.Itoa(int(size)) + " B"
	case size < 1<<20:
		return fmt.Sprintf("%.1f KiB", size/(1<<10))
	case size < 1<<30:
		return fmt.Sprintf("%.1f MiB", size/(1<<20))
	default:
		return fmt.Sprintf("%.1f GiB", size/(1<<30))
	}
}

// kindText is what a run does, for people.
func kindText(kind dlq.Kind) string {
	switch kind {
	case dlq.Purge:
		return "Delete"
	case kindImport:
		return "Put back"
	case dlq.SendNow:
		return "Send now"
	default:
		return strings.ToUpper(string(kind[:1])) + string(kind[1:])
	}
}

// stepOf is the step of a run that is not over: 2 before it is confirmed, 3 then.
func stepOf(s runState) int {
	if s == stateCounting || s == stateReady {
		return 2
	}

	return 3
}

// link is a relative URL: the page, and the query in pairs of name and value. A value may be
// url.Values, whose name is then of no use.
func link(page string, pairs ...any) (template.URL, error) {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		switch value := pairs[i+1].(type) {
		case url.Values:
			for key, values := range value {
				query[key] = append(query[key], values...)
			}
		default:
			if text := fmt.Sprint(value); text != "" {
				query.Set(fmt.Sprint(pairs[i]), text)
			}
		}
	}
	if len(pairs)%2 != 0 {
		return "", errors.New("link: a name without a value")
	}
	if len(query) == 0 {
		return template.URL(page), nil //nolint:gosec // a page of ours
	}

	return template.URL(page + "?" + query.Encode()), nil //nolint:gosec // a page of ours, and an encoded query
}

// page is what every page has.
type page struct {
	Title   string
	Visitor visitor
	// Acts tells whether the console can do more than show.
	Acts bool
	// Live pages are asked for again by the script; without JavaScript only where Waits, as that
	// takes what somebody has typed.
	Live, Waits bool
	// Again is the content of the refresh of a page that Waits; empty for its own address.
	Again template.HTMLAttr
	// VHost is the virtual host, Name that of the template, and Busy how many runs go on.
	VHost, Name string
	Busy        int
	Data        any
}

// InRuns tells whether the page belongs to the runs, and not to the queues.
func (p page) InRuns() bool { return p.Name == "runs" || p.Name == "run" }

// render writes a page.
func (c *Console) render(w http.ResponseWriter, status int, name string, p page) error {
	p.Acts, p.VHost, p.Name = c.config.acts(), c.vhost, name
	p.Again = cmp.Or(p.Again, `content="5"`)
	if p.Acts && p.Visitor.CanView() {
		p.Busy = c.runs.busy()
	}
	var out bytes.Buffer
	if err := templates[name].Execute(&out, p); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes())

	return nil
}

// html makes a handler of a page.
func (c *Console) html(do func(http.ResponseWriter, *http.Request, visitor) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := c.authorize(r)
		if err == nil {
			bound(w, r, who)
			err = do(w, r, who)
		}
		if err != nil {
			c.auditRefusal(r, who, err)
			c.answer(w, r, who, err)
		}
	})
}

// json makes a handler of what the API answers.
func (c *Console) json(do func(*http.Request, visitor) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := c.authorize(r)
		var value any
		if err == nil {
			bound(w, r, who)
			value, err = do(r, who)
		}
		if err != nil {
			c.auditRefusal(r, who, err)
			c.answer(w, r, who, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if created, is := value.(created); is {
			w.Header().Set("Location", created.location)
			w.WriteHeader(http.StatusCreated)
		}
		_ = json.NewEncoder(w).Encode(value)
	})
}

// created is a run that was just planned, and its address as seen from what has planned it.
type created struct {
	Run
	location string
}

// answer tells of an error: as a page, or as the API does.
func (c *Console) answer(w http.ResponseWriter, r *http.Request, who visitor, err error) {
	p := problemOf(err)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		p = &problem{Status: http.StatusRequestEntityTooLarge, Title: "That is too large",
			Detail: "At most " + sizeOf(tooLarge.Limit) + "."}
	}
	if p.Status >= http.StatusInternalServerError {
		c.config.Logger.Error("Cannot answer a request", cmp.Or(p.cause, err), watermill.LogFields{"path": r.URL.Path})
	}
	p.announce(w.Header())
	if strings.HasPrefix(r.URL.Path, "/api/") {
		p.writeJSON(w)
		return
	}
	if err := c.render(w, p.Status, "problem", page{Title: p.Title, Visitor: who, Data: p}); err != nil {
		c.config.Logger.Error("Cannot show a page", err, watermill.LogFields{"path": r.URL.Path})
	}
}

// static serves the style and the script, which nobody needs to be somebody for. A file server of
// net/http would redirect some paths.
func (c *Console) static(w http.ResponseWriter, r *http.Request) {
	text, err := staticFiles.ReadFile("static/" + r.PathValue("file"))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	if r.URL.Query().Get("v") == version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, r.PathValue("file"), time.Time{}, bytes.NewReader(text))
}

// cut shortens a text to so many bytes, at a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && text[most]&0xc0 == 0x80 {
		most--
	}

	return text[:most] + "…"
}

// short is a text of at most so many characters.
func short(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}

	return text
}
