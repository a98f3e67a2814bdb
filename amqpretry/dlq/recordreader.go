package dlq

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON by hand: encoding/json replaces what is not UTF-8 and half characters without a word, takes the last of two
// members with one name, and needs several times as long for a hundred thousand of lines.

// maxDepth is how deep objects and arrays may be in each other. AMQP allows 32 tables, each of which takes two here.
const maxDepth = 100

// jsonReader reads JSON that is UTF-8, from one value to the next. Its methods read one value and leave at the byte
// behind it; or fail, and then at is of no use.
type jsonReader struct {
	data      string
	at, depth int
}

// next is the first byte of what comes, 0 at the end.
func (r *jsonReader) next() byte {
	for ; r.at < len(r.data); r.at++ {
		switch c := r.data[r.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}

	return 0
}

// wrong is the error for a value that is not what was wanted.
func (r *jsonReader) wrong(wanted string) error {
	r.next()
	probe := *r
	if err := probe.skip(); err != nil {
		return err
	}

	return &RecordError{Wanted: wanted, Found: excerpt(r.data[r.at:probe.at])}
}

func (r *jsonReader) malformed() error {
	found := "the end"
	if r.at < len(r.data) {
		found = fmt.Sprintf("%q", excerpt(r.data[r.at:min(len(r.data), r.at+20)]))
	}

	return &RecordError{Wanted: "JSON", Found: fmt.Sprintf("%s at byte %d", found, r.at+1)}
}

// end tells whether there is nothing more.
func (r *jsonReader) end() error {
	if r.next(); r.at < len(r.data) {
		return r.malformed()
	}

	return nil
}

func (r *jsonReader) container(open, shut byte, wanted string, read func() error) error {
	if r.next() != open {
		return r.wrong(wanted)
	}
	if r.depth++; r.depth > maxDepth {
		return &RecordError{Wanted: fmt.Sprintf("at most %d deep", maxDepth), Found: "more"}
	}
	r.at++
	if r.next() == shut {
		r.at++
		r.depth--

		return nil
	}
	for {
		if err := read(); err != nil {
			return err
		}
		switch r.next() {
		case ',':
			r.at++
		case shut:
			r.at++
			r.depth--

			return nil
		default:
			return r.malformed()
		}
	}
}

// object reads any members.
func (r *jsonReader) object(read func(key string) error) error {
	return r.container('{', '}', "an object", func() error {
		key, err := r.key()
		if err != nil {
			return err
		}
		if err := read(key); err != nil {
			return within(member(key), err)
		}

		return nil
	})
}

// fields reads an object of ours: members with known names, in any order, each at most once.
func (r *jsonReader) fields(known []string, read func(name string) error) error {
	seen := 0

	return r.container('{', '}', "an object", func() error {
		key, err := r.key()
		if err != nil {
			return err
		}
		i := slices.Index(known, key)
		if i < 0 {
			return &RecordError{member(key), "one of " + strings.Join(known, ", "), "an unknown field"}
		}
		if seen&(1<<i) != 0 {
			return &RecordError{member(known[i]), "there once", "it twice"}
		}
		seen |= 1 << i
		if err := read(known[i]); err != nil {
			return within(member(known[i]), err)
		}

		return nil
	})
}

func (r *jsonReader) array(read func() error) error {
	i := 0

	return r.container('[', ']', "an array", func() error {
		if err := read(); err != nil {
			return within("["+strconv.Itoa(i)+"]", err)
		}
		i++

		return nil
	})
}

func (r *jsonReader) key() (string, error) {
	if r.next() != '"' {
		return "", r.malformed()
	}
	key, err := r.quoted()
	if err != nil {
		return "", err
	}
	if r.next() != ':' {
		return "", r.malformed()
	}
	r.at++

	return key, nil
}

func (r *jsonReader) text() (string, error) {
	if r.next() != '"' {
		return "", r.wrong("a string")
	}

	return r.quoted()
}

// quoted gives what is in the quotes; a part of the data if it has no escapes.
func (r *jsonReader) quoted() (string, error) {
	r.at++
	start, escaped := r.at, false
	for ; r.at < len(r.data); r.at++ {
		switch c := r.data[r.at]; {
		case c == '"':
			end := r.at
			if escaped {
				return r.unescaped(start, end)
			}
			r.at++

			return r.data[start:end], nil
		case c == '\\':
			escaped = true
			r.at++
		case c < ' ':
			return "", r.malformed()
		}
	}
	r.at = len(r.data)

	return "", r.malformed()
}

func (r *jsonReader) unescaped(start, end int) (string, error) {
	out := make([]byte, 0, end-start)
	for r.at = start; r.at < end; {
		rest := r.data[r.at:end]
		plain := strings.IndexByte(rest, '\\')
		if plain < 0 {
			plain = len(rest)
		}
		out = append(out, rest[:plain]...)
		r.at += plain

		if r.at < end {
			char, size := escape(r.data[r.at:end])
			if size == 0 {
				return "", r.malformed()
			}
			out = utf8.AppendRune(out, char)
			r.at += size
		}
	}
	r.at++

	return string(out), nil
}

// escape reads what begins with a backslash. The size is 0 if there is no such escape, or half a character.
func escape(text string) (char rune, size int) {
	if i := strings.IndexByte(`"\/bfnrt`, text[1]); i >= 0 {
		return rune("\"\\/\b\f\n\r\t"[i]), 2
	}
	char, ok := utf16Unit(text)
	switch {
	case !ok:
		return 0, 0
	case !utf16.IsSurrogate(char):
		return char, 6
	}
	second, ok := utf16Unit(text[6:])
	if char = utf16.DecodeRune(char, second); !ok || char == unicode.ReplacementChar {
		return 0, 0
	}

	return char, 12
}

// utf16Unit reads \u and four digits.
func utf16Unit(text string) (rune, bool) {
	if len(text) < 6 || text[:2] != `\u` {
		return 0, false
	}
	n, err := strconv.ParseUint(text[2:6], 16, 16)

	return rune(n), err == nil
}

// number gives a number, which is what comes, as it is written.
func (r *jsonReader) number() (string, error) {
	start := r.at
	digits := func() bool {
		from := r.at
		for r.at < len(r.data) && r.data[r.at] >= '0' && r.data[r.at] <= '9' {
			r.at++
		}

		return r.at > from
	}
	one := func(chars string) bool {
		found := r.at < len(r.data) && strings.IndexByte(chars, r.data[r.at]) >= 0
		if found {
			r.at++
		}

		return found
	}

	one("-")
	ok := one("0") || digits()
	if ok && one(".") {
		ok = digits()
	}
	if ok && one("eE") {
		one("+-")
		ok = digits()
	}
	if !ok {
		return "", r.malformed()
	}

	return r.data[start:r.at], nil
}

func (r *jsonReader) word(word string) error {
	if !strings.HasPrefix(r.data[r.at:], word) {
		return r.malformed()
	}
	r.at += len(word)

	return nil
}

func (r *jsonReader) bool() (bool, error) {
	switch r.next() {
	case 't':
		return true, r.word("true")
	case 'f':
		return false, r.word("false")
	}

	return false, r.wrong("true or false")
}

func (r *jsonReader) null() error {
	if r.next() != 'n' {
		return r.wrong("null")
	}

	return r.word("null")
}

// skip reads a value of any kind.
func (r *jsonReader) skip() error {
	var err error
	switch c := r.next(); {
	case c == '{':
		return r.container('{', '}', "", func() error {
			if _, err := r.key(); err != nil {
				return err
			}

			return r.skip()
		})
	case c == '[':
		return r.container('[', ']', "", r.skip)
	case c == '"':
		_, err = r.quoted()
	case c == 't' || c == 'f':
		_, err = r.bool()
	case c == 'n':
		err = r.null()
	case c == '-' || c >= '0' && c <= '9':
		_, err = r.number()
	default:
		err = r.malformed()
	}

	return err
}
