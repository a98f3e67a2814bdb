package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Bounds of an answer with all its pages. A virtual host with 100,000 retry queues stays within
// them.
const (
	mostBytes   = 64 << 20  // unpacked; a retry queue has about 550
	mostValues  = 2_400_000 // a retry queue has about 20; a small value takes up to 100 bytes of memory
	mostObjects = 200_000
	mostTime    = 2 * time.Minute // 200 pages, each in 0.6 s
)

const (
	// requestTimeout bounds a single request, whatever the context says: a frozen broker answers
	// nothing.
	requestTimeout = 30 * time.Second
	// mostObjectBytes bounds one object of a list. A queue without 1,000 arguments is far below it.
	mostObjectBytes = 1 << 20
	// mostErrorBytes is how much is read of an answer that is an error, and mostWords how much of
	// it is shown.
	mostErrorBytes, mostWords = 64 << 10, 1 << 10
)

// bounds are what is left for the answer to a question with all its pages.
type bounds struct{ bytes, values, objects int64 }

func newBounds() *bounds { return &bounds{mostBytes, mostValues, mostObjects} }

// answer reads the JSON of a response within its bounds.
type answer struct {
	*json.Decoder

	body            io.Reader
	left            *bounds
	read, stop      int64 // bytes of the body
	inText, escaped bool  // where in the JSON the next byte is
}

func newAnswer(body io.Reader, left *bounds) *answer {
	a := &answer{body: body, left: left}
	a.Decoder = json.NewDecoder(a)

	return a
}

// Read is for the decoder.
func (a *answer) Read(p []byte) (int, error) {
	if a.read >= a.stop {
		return 0, tooMuch("%d MiB for one object of a list", mostObjectBytes>>20)
	}
	n, err := a.body.Read(p[:min(int64(len(p)), a.stop-a.read)])
	a.read += int64(n)
	a.left.bytes -= int64(n)
	a.count(p[:n])
	switch {
	case a.left.bytes < 0:
		return 0, tooMuch("%d MiB", mostBytes>>20)
	case a.left.values < 0:
		return 0, tooMuch("%d values", mostValues)
	}

	return n, err
}

// count counts values, by what begins or follows one.
func (a *answer) count(text []byte) {
	for _, c := range text {
		switch {
		case a.escaped:
			a.escaped = false
		case a.inText:
			a.escaped, a.inText = c == '\\', c != '"'
		case c == '"':
			a.inText = true
		case c == ',', c == '{', c == '[':
			a.left.values--
		}
	}
}

// allow lets the decoder read so many more bytes.
func (a *answer) allow(bytes int64) { a.stop = a.InputOffset() + bytes }

// begin reads the first byte of a list or an object.
func (a *answer) begin(wanted json.Delim, kind string) error {
	a.allow(mostObjectBytes)
	token, err := a.Token()
	if err != nil {
		return err
	}
	if token == wanted {
		return nil
	}
	found := fmt.Sprintf("%T", token)
	switch token {
	case nil:
		found = "null"
	case json.Delim('['):
		found = "a list"
	case json.Delim('{'):
		found = "an object"
	}

	return foreign("%s instead of %s", found, kind)
}

// more tells whether a list or an object goes on, and else reads its last byte.
func (a *answer) more() (bool, error) {
	a.allow(mostObjectBytes)
	if a.More() {
		return true, nil
	}
	_, err := a.Token()

	return false, err
}

// end reads what follows, which is nothing.
func (a *answer) end() error {
	a.allow(mostObjectBytes)
	switch _, err := a.Token(); {
	case err == nil:
		return foreign("more than one answer")
	case errors.Is(err, io.EOF):
		return nil
	default:
		return err
	}
}

// elements reads a list.
func elements[T any](a *answer) ([]T, error) {
	if err := a.begin('[', "a list"); err != nil {
		return nil, err
	}
	var all []T
	for {
		more, err := a.more()
		if err != nil || !more {
			return all, err
		}
		if a.left.objects--; a.left.objects < 0 {
			return nil, tooMuch("%d objects", mostObjects)
		}
		var one *T
		switch err := a.Decode(&one); {
		case err != nil:
			return nil, err
		case one == nil:
			return nil, foreign("a list with null in it")
		}
		all = append(all, *one)
	}
}

// object reads one object.
func object[T any](a *answer) (T, error) {
	a.allow(mostBytes + 1)
	var one *T
	err := a.Decode(&one)
	if err == nil && one == nil {
		err = foreign("null instead of an object")
	}
	if err != nil {
		return *new(T), err
	}

	return *one, nil
}

// page is one page of a list.
type page struct {
	items  []Queue
	listed bool // items
	// number of the page, and of all pages; nil where the answer has none.
	number, pages *int
}

// readPage reads one page. It decodes each item alone, so that the text of a page is never in
// memory as a whole.
func readPage(a *answer) (p page, err error) {
	if err := a.begin('{', "a page of a list"); err != nil {
		return page{}, err
	}
	for {
		more, err := a.more()
		if err != nil || !more {
			return p, err
		}
		key, err := a.Token()
		if err != nil {
			return page{}, err
		}
		a.allow(mostObjectBytes)
		switch key {
		case "items":
			p.listed = true
			p.items, err = elements[Queue](a)
		case "page":
			err = a.Decode(&p.number)
		case "page_count":
			err = a.Decode(&p.pages)
		default:
			err = a.Decode(new(json.RawMessage))
		}
		if err != nil {
			return page{}, err
		}
	}
}

// check tells whether it is the page that was asked for. A list that ends too early would be taken
// for all there is.
func (p page) check(number int) error {
	switch {
	case !p.listed:
		return foreign("a page with no items")
	case p.pages == nil:
		return foreign("a page that does not tell how many there are")
	case p.number != nil && *p.number != number:
		return foreign("page %d instead of page %d", *p.number, number)
	case len(p.items) > pageSize:
		return foreign("a page of %d queues instead of at most %d", len(p.items), pageSize)
	case len(p.items) == 0 && number < *p.pages:
		return foreign("an empty page %d of %d", number, *p.pages)
	default:
		return nil
	}
}

// unread explains why an answer could not be read.
func unread(err error) error {
	var otherType *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &otherType):
		return foreign("JSON of another kind: %s for %q", otherType.Value, otherType.Field)
	case errors.As(err, &syntax):
		return foreign("an answer that is not JSON")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return foreign("an answer that breaks off")
	default:
		return err
	}
}

// reasonOf is what an answer with an error says.
func reasonOf(response *http.Response) string {
	text, _ := io.ReadAll(io.LimitReader(response.Body, mostErrorBytes))
	var said struct{ Reason any }
	if err := json.Unmarshal(text, &said); err != nil || said.Reason == nil {
		return short(string(text))
	}

	return short(fmt.Sprint(said.Reason))
}
