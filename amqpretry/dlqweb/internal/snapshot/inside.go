package snapshot

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// inside compares what is in whole messages. To decode one takes longer than to see that its record
// does not have some text.
type inside struct {
	filter dlq.Filter
	asks   bool
	// body tells that the filter asks for nothing but the body.
	body bool
	// onlyText tells that it asks for nothing but the text.
	onlyText bool
	// text in lower case, and values, are in the records of all messages that match.
	text   []byte
	values [][]byte
}

func newInside(f dlq.Filter) inside {
	i := inside{filter: dlq.Filter{Text: f.Text, Headers: f.Headers, Fields: f.Fields, Where: f.Where}}
	i.body = f.Text == "" && len(f.Headers) == 0 && f.Where == nil
	i.onlyText = len(f.Headers)+len(f.Fields) == 0 && f.Where == nil
	i.asks = !i.body || len(f.Fields) > 0
	if text := strings.ToLower(f.Text); strings.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
		i.text = []byte(text)
	}
	for _, value := range f.Headers {
		i.values = append(i.values, []byte(value))
	}

	return i
}

func (i *inside) matches(record []byte, now time.Time) (bool, error) {
	if i.body {
		body, err := bodyOf(record)
		var l dlq.DeadLetter
		l.Message.Body = body
		return err == nil && i.filter.Matches(&l, now), err
	}
	if len(i.text) > 0 {
		if !has(record, i.text) {
			return false, nil
		}
		if body, err := bodyOf(record); err == nil && i.onlyText && has(body, i.text) && !isOdd(body) {
			return true, nil
		}
	}
	for _, value := range i.values {
		if !bytes.Contains(record, value) {
			return false, nil
		}
	}
	l, err := decode(record)

	return err == nil && i.filter.Matches(l, now), err
}

// Two characters beyond ASCII whose lower case is, or begins with, a letter of ASCII.
var kelvin, dottedI = []byte("\u212a"), []byte("\u0130")

// has tells whether a record may have a text, in any case.
func has(record, lower []byte) bool {
	first, rest := lower[0], lower[1:]
	upper := first
	if first >= 'a' && first <= 'z' {
		upper -= 'a' - 'A'
	}
	for at := 0; at+len(lower) <= len(record); at++ {
		if c := record[at]; (c == first || c == upper) && bytes.EqualFold(record[at+1:at+len(lower)], rest) {
			return true
		}
	}

	return isOdd(record)
}

// isOdd tells that has may be wrong.
func isOdd(record []byte) bool {
	return bytes.Contains(record, kelvin) || bytes.Contains(record, dottedI)
}

// window reads records that follow one another with few reads.
type window struct {
	file   *file
	buffer []byte
	begin  int64
}

const windowSize = 1 << 20

// record gives the record of a row, which is good until the next call. So many bytes are read at
// once, if there are as many.
func (w *window) record(r *row, atOnce int64) ([]byte, error) {
	if r.offset < 0 {
		return nil, ErrNotKept
	}
	end := r.offset + int64(r.length)
	if r.offset < w.begin || end > w.begin+int64(len(w.buffer)) {
		size := min(max(atOnce, int64(r.length)), w.file.size-r.offset)
		if int64(cap(w.buffer)) < size {
			w.buffer = make([]byte, size)
		}
		w.buffer, w.begin = w.buffer[:size], r.offset
		if _, err := w.file.ReadAt(w.buffer, r.offset); err != nil {
			w.buffer = w.buffer[:0]
			if errors.Is(err, io.EOF) { // the disk was full
				return nil, ErrNotKept
			}
			return nil, err
		}
	}

	return w.buffer[r.offset-w.begin : end-w.begin], nil
}
