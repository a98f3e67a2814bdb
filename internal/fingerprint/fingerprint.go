// Package fingerprint tells the causes of failures apart: by the type of the error, its text
// without what differs from one message to the next, and the handler.
package fingerprint

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// fingerprintBytes is the length of an ID: 48 bits, so that two of a thousand different causes meet
// once in 560 million.
const fingerprintBytes = 6

// mostPattern is how many bytes of an error text tell causes apart.
const mostPattern = 500

// Of returns the ID of a cause, 12 hexadecimal digits, and the pattern of its error text: the text
// with placeholders, at most 500 bytes, or the reason where there is no text.
func Of(errorType, handler, text, reason string) (id, pattern string) {
	pattern = cmp.Or(patternOf(text), reason)
	sum := sha256.Sum256([]byte(errorType + "\x00" + handler + "\x00" + pattern))

	return hex.EncodeToString(sum[:fingerprintBytes]), pattern
}

// IsID reports whether a text is an ID.
var IsID = regexp.MustCompile(`^[0-9a-f]{12}$`).MatchString

// patternOf replaces what differs from one message to the next. It takes the text from left to
// right, once.
func patternOf(text string) string {
	p := patterner{rest: text}
	for p.rest != "" && p.out.Len() < mostPattern {
		p.step()
	}
	out := strings.TrimSpace(p.out.String())
	if len(out) > mostPattern {
		out = strings.ToValidUTF8(out[:mostPattern], "")
	}

	return out
}

type patterner struct {
	rest string
	out  strings.Builder
	last rune // that was taken; 0 in the beginning
	// unclosed are the single quotes and backticks that do not come again, so that nobody looks for
	// them twice.
	unclosed [utf8.RuneSelf]bool
}

var uuid = regexp.MustCompile(`^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}`)

// aUUID is the length of its text.
const aUUID = 36

func (p *patterner) step() {
	r, size := utf8.DecodeRuneInString(p.rest)
	switch {
	case unicode.IsSpace(r) || r == utf8.RuneError && size <= 1:
		if p.last != ' ' {
			p.out.WriteByte(' ')
		}
		p.rest, p.last = p.rest[size:], ' '
	case (r == '"' || r == '\'' || r == '`') && !isWord(p.last) && p.quoted(byte(r)):
	case isWord(r):
		p.word()
	default:
		p.take(size)
	}
}

// take copies the next bytes, as they are.
func (p *patterner) take(n int) { p.replace(n, p.rest[:n]) }

// replace leaves out the next bytes, for something else.
func (p *patterner) replace(n int, by string) {
	p.last, _ = utf8.DecodeLastRuneInString(p.rest[:n])
	p.out.WriteString(by)
	p.rest = p.rest[n:]
}

// quoted leaves out a text in quotes. A text whose " is not closed was cut off. Other quotes that are
// not closed are apostrophes.
func (p *patterner) quoted(quote byte) bool {
	if p.unclosed[quote] {
		return false
	}
	const quoted = `"…"`
	for i := 1; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '\\' && quote == '"':
			i++
		case c == quote:
			p.replace(i+1, quoted)
			return true
		}
	}
	if quote == '"' {
		p.replace(len(p.rest), quoted)
		return true
	}
	p.unclosed[quote] = true

	return false
}

// word takes the letters and digits up to the next other character.
func (p *patterner) word() {
	if len(p.rest) >= aUUID && uuid.MatchString(p.rest[:aUUID]) && !startsWithWord(p.rest[aUUID:]) {
		p.replace(aUUID, "<uuid>")
		return
	}
	n := strings.IndexFunc(p.rest, func(r rune) bool { return !isWord(r) })
	if n < 0 {
		n = len(p.rest)
	}
	word := p.rest[:n]
	switch {
	case isHex(word):
		p.replace(n, "<hex>")
	case isID(word):
		p.replace(n, "<id>")
	default:
		p.replace(n, withoutNumbers(word))
	}
	// 1.5 and 10.0.0.7 are one number each, however many dots.
	for strings.HasSuffix(p.out.String(), "<n>") && len(p.rest) > 1 && p.rest[0] == '.' && isDigit(p.rest[1]) {
		digits := 1
		for digits < len(p.rest) && isDigit(p.rest[digits]) {
			digits++
		}
		p.replace(digits, "")
	}
}

func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

func startsWithWord(text string) bool {
	r, _ := utf8.DecodeRuneInString(text)
	return isWord(r)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isHex tells 0x and digits, and eight or more digits of both kinds: "deadbeef" and "20261122" are none.
func isHex(word string) bool {
	const least = 8
	digits, prefixed := strings.CutPrefix(strings.ToLower(word), "0x")
	if prefixed {
		return digits != "" && strings.Trim(digits, "0123456789abcdef") == ""
	}

	return len(word) >= least && strings.Trim(digits, "0123456789abcdef") == "" && isMixed(word)
}

// isID tells what generators of ids make: ULIDs, short UUIDs, KSUIDs.
func isID(word string) bool {
	const least = 16
	return len(word) >= least && !strings.Contains(word, "_") && isMixed(word) &&
		strings.IndexFunc(word, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

// isMixed tells letters and digits together.
func isMixed(word string) bool {
	return strings.ContainsAny(word, "0123456789") && strings.IndexFunc(word, unicode.IsLetter) >= 0
}

var number = regexp.MustCompile(`\p{Nd}+`)

func withoutNumbers(word string) string {
	if strings.IndexFunc(word, unicode.IsDigit) < 0 { // most words
		return word
	}

	return number.ReplaceAllString(word, "<n>")
}
