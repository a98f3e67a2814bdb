package dlq

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep objects and arrays may be nested. AMQP allows 32 tables, each of which takes
// two levels here.
const maxDepth = 100

// encodeJSON returns value as JSON that is safe to print in a terminal.
func encodeJSON(value any) ([]byte, error) {
	var out terminalSafe
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)

	return bytes.TrimSuffix(out, []byte("\n")), err
}

// terminalSafe collects JSON and escapes the characters that control a terminal or reverse the
// order of a text. JSON has them in strings only.
type terminalSafe []byte

func (t *terminalSafe) Write(data []byte) (int, error) {
	out, written := slices.Grow(*t, len(data)), 0
	for i := 0; i < len(data); {
		if data[i] < 0x7f { // most lines are ASCII: decoding each character would take two fifths of the time
			i++
			continue
		}
		r, size := utf8.DecodeRune(data[i:])
		if controlsTerminal(r) {
			out = fmt.Appendf(append(out, data[written:i]...), `\u%04x`, r)
			written = i + size
		}
		i += size
	}
	*t = append(out, data[written:]...)

	return len(data), nil
}

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
