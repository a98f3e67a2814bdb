package dlqweb

import (
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/amqpretry/watermill-retry/config"
)

// What a query or a form has beside filters.
var (
	waitingKeys = []string{"queue", "main-queue", "page", "refresh", "search", "live"}
	queueKeys   = []string{"queue", "main-queue", "sort", "page", "since", "refresh", "search", "live"}
	messageKeys = append([]string{"position", "snapshot", "as"}, queueKeys...)
	planKeys    = []string{"kind", "queue", "main-queue", "to", "limit", "rate", "canary", "tolerate", "foreign",
		"include-parked", "allow-drop", "note", "until", "snapshot", "rest-of"}
	formKeys = append([]string{"edit", "expect", "typed"}, planKeys...)
)

// onlyKeys refuses what is neither a filter nor one of others, and others that come twice. Unlike
// for checkKeys, a value may be empty: a browser sends each input of a form.
func onlyKeys(values url.Values, others ...string) error {
	var errs []error
	for _, key := range sortedKeys(values) {
		switch {
		case slices.Contains(others, key):
			if n := len(values[key]); n > 1 {
				errs = append(errs, &config.FieldError{Path: key, Wanted: "one value", Found: strconv.Itoa(n)})
			}
		case !slices.Contains(filterKeys, key):
			errs = append(errs, noFilter(key))
		}
	}

	return errors.Join(errs...)
}

// withKeys makes a page refuse a query with other keys.
func withKeys(do func(http.ResponseWriter, *http.Request, visitor) error, others ...string) func(http.ResponseWriter,
	*http.Request, visitor) error {
	return func(w http.ResponseWriter, r *http.Request, who visitor) error {
		if err := onlyKeys(r.URL.Query(), others...); err != nil {
			return err
		}

		return do(w, r, who)
	}
}

// checkQuery refuses a query in the address of a request whose body or path says everything:
// somebody may mean it to select messages.
func checkQuery(r *http.Request, allowed ...string) error {
	var errs []error
	for _, key := range sortedKeys(r.URL.Query()) {
		if !slices.Contains(allowed, key) {
			errs = append(errs, &config.FieldError{Path: key, Problem: "is ignored in the address of this request",
				Wanted: "left out"})
		}
	}

	return errors.Join(errs...)
}

func noFilter(key string) error {
	return &config.FieldError{Path: key, Problem: "is no filter", Wanted: "one of " + strings.Join(filterKeys, ", ")}
}

// lastPart is the file of a form. It refuses parts behind the file: nobody would read them.
type lastPart struct {
	io.Reader
	parts *multipart.Reader
}

func (l *lastPart) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if err != io.EOF { //nolint:errorlint // as io.Reader documents it
		return n, err
	}
	part, err := l.parts.NextPart()
	if err == nil {
		err = noImportKey(part.FormName())
	}

	return n, err
}

func noImportKey(name string) *problem {
	return badRequest("form", "queue, main-queue and, as the last one, file: an import takes the whole file",
		strconv.Quote(cut(name, mostSummary)))
}
