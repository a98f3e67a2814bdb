package dlq

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep objects and arrays may be nested. AMQP allows 32 tables, each of which takes
// two levels here.
const maxDepth = 100

// encoder appends JSON that is safe to print in a terminal: it escapes the characters that control
// one or reverse the order of a text. It writes what encoding/json would write, without a value in
// between for each part of a message.
type encoder struct {
	out     []byte
	members []headerMember // of the tables that are being written
}

// next separates a member or an element from the one before.
func (e *encoder) next() {
	if last := e.out[len(e.out)-1]; last != '{' && last != '[' {
		e.out = append(e.out, ',')
	}
}

// name begins a member of an object.
func (e *encoder) name(name string) {
	e.next()
	e.out = append(append(append(e.out, '"'), name...), `":`...)
}

// member writes members, by name and text, but those whose text is empty.
func (e *encoder) member(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			e.name(pairs[i])
			e.out = appendQuoted(e.out, pairs[i+1])
		}
	}
}

// integer writes a member, unless it is 0.
func (e *encoder) integer(name string, n int) {
	if n != 0 {
		e.name(name)
		e.out = strconv.AppendInt(e.out, int64(n), 10)
	}
}

// time writes a member, unless it is zero.
func (e *encoder) time(name string, t time.Time) error {
	if t.IsZero() {
		return nil
	}
	e.name(name)
	out, err := t.AppendText(append(e.out, '"'))
	if err == nil {
		e.out = append(out, '"')
	}

	return err
}

func (e *encoder) base64(data []byte) {
	e.out = append(base64.StdEncoding.AppendEncode(append(e.out, '"'), data), '"')
}

// encodeJSON returns any value as JSON that is safe to print in a terminal.
func encodeJSON(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	var out []byte
	for _, r := range string(bytes.TrimSuffix(text.Bytes(), []byte("\n"))) { // which is valid UTF-8
		if out = utf8.AppendRune(out, r); controlsTerminal(r) {
			out = fmt.Appendf(out[:len(out)-utf8.RuneLen(r)], `\u%04x`, r)
		}
	}

	return out, err
}

// appendQuoted appends a text as a JSON string. What is not UTF-8 becomes U+FFFD.
func appendQuoted[T string | []byte](out []byte, s T) []byte {
	out = append(out, '"')
	written := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		r, size := rune(c), 1
		if c >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
			if (r != utf8.RuneError || size > 1) && !controlsTerminal(r) {
				i += size
				continue
			}
		}
		out = append(out, s[written:i]...)
		if at := strings.IndexByte(escaped, c); at >= 0 {
			out = append(out, '\\', escapes[at])
		} else {
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		i += size
		written = i
	}

	return append(append(out, s[written:]...), '"')
}

// escapes are the letters for what is escaped by one.
const escaped, escapes = "\"\\\b\f\n\r\t", `"\bfnrt`

func controlsTerminal(r rune) bool {
	return r >= 0x7f && r <= 0x9f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

// decodeJSON reads valid JSON as string, json.Number, bool, nil, []any and map[string]any, except
// the members of the object that are named by ignored. Unlike encoding/json, it refuses an object
// with the same name twice, and half a character (a lone surrogate), instead of changing the value.
func decodeJSON(text []byte, ignored ...string) (any, error) {
	if i := loneSurrogate(text); i >= 0 {
		found := fmt.Sprintf("half a character, %s, at byte %d", text[i:i+6], i+1)
		return nil, &RecordError{Wanted: "JSON", Found: found}
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()

	return decodeValue(decoder, 1, ignored...)
}

func decodeValue(decoder *json.Decoder, depth int, ignored ...string) (any, error) {
	token, err := decoder.Token()
	if _, nested := token.(json.Delim); nested && depth > maxDepth {
		return nil, &RecordError{Wanted: fmt.Sprintf("at most %d deep", maxDepth), Found: "more"}
	}
	switch token {
	case json.Delim('{'):
		object := map[string]any{}
		for decoder.More() {
			token, _ := decoder.Token()
			name, _ := token.(string)
			if _, twice := object[name]; twice {
				return nil, within(member(name), errTwice())
			}
			if slices.Contains(ignored, name) {
				object[name], err = nil, decoder.Decode(new(json.RawMessage))
			} else {
				object[name], err = decodeValue(decoder, depth+1)
			}
			if err != nil {
				return nil, within(member(name), err)
			}
		}
		_, err = decoder.Token()

		return object, err
	case json.Delim('['):
		array := []any{}
		for decoder.More() {
			value, err := decodeValue(decoder, depth+1)
			if err != nil {
				return nil, within(element(len(array)), err)
			}
			array = append(array, value)
		}
		_, err = decoder.Token()

		return array, err
	}

	return token, err
}

// loneSurrogate returns where valid JSON has an escape that is half a character, or -1.
func loneSurrogate(text []byte) int {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		first, second := utf16Unit(text, i), utf16Unit(text, i+6)
		switch {
		case !utf16.IsSurrogate(first):
			i++ // what is escaped may be a backslash
		case utf16.DecodeRune(first, second) == unicode.ReplacementChar:
			return i
		default:
			i += 11
		}
	}

	return -1
}

// utf16Unit returns the unit that is escaped as \uXXXX at i, or 0.
func utf16Unit(text []byte, i int) rune {
	if i+6 > len(text) || string(text[i:i+2]) != `\u` {
		return 0
	}
	unit, _ := strconv.ParseUint(string(text[i+2:i+6]), 16, 16)

	return rune(unit)
}

// as returns value if it is a T.
func as[T any](value any, wanted string) (T, error) {
	v, ok := value.(T)
	if !ok {
		return v, wrong(value, wanted)
	}

	return v, nil
}

// field is a member that an object may have. Without read its value is ignored.
type field struct {
	name string
	read func(value any) error
}

// into makes a field's read of a function that returns the value.
func into[T any](target *T, read func(value any) (T, error)) func(any) error {
	return func(value any) (err error) {
		*target, err = read(value)
		return err
	}
}

// readObject reads an object that has no other members than fields, in their order.
func readObject(value any, fields []field) error {
	object, err := as[map[string]any](value, "an object")
	if err != nil {
		return err
	}
	found := 0
	for _, f := range fields {
		value, there := object[f.name]
		if !there {
			continue
		}
		found++
		if f.read == nil {
			continue
		}
		if err := f.read(value); err != nil {
			return within(member(f.name), err)
		}
	}
	if found == len(object) {
		return nil
	}

	var known []string
	for _, f := range fields {
		known = append(known, f.name)
		delete(object, f.name)
	}
	unknown := slices.Min(slices.Collect(maps.Keys(object)))

	return &RecordError{member(unknown), "one of " + strings.Join(known, ", "), "an unknown field"}
}
