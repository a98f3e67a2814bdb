package cli

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Safe is text that does nothing to a terminal: control characters, those that turn the direction
// of writing, and others that cannot be seen are written as \x1b or \u202e are, and so is what is
// no UTF-8. It is one line. Texts and names come from messages and brokers of others.
func Safe(text string) string {
	if strings.IndexFunc(text, isUnsafe) < 0 && utf8.ValidString(text) {
		return text
	}

	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case !isUnsafe(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		i += size
	}

	return b.String()
}

// safeJSON is the same for JSON, where such characters can only be in strings, and may be escaped
// there. It has line ends of its own.
func safeJSON(text []byte) []byte {
	unsafe := func(r rune) bool { return r != '\n' && isUnsafe(r) }
	if bytes.IndexFunc(text, unsafe) < 0 && utf8.Valid(text) {
		return text
	}

	var out []byte
	for _, r := range string(text) { // what is no UTF-8 is the replacement character
		switch {
		case !unsafe(r):
			out = utf8.AppendRune(out, r)
		case r < 0x10000:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
	}

	return out
}

// isUnsafe holds for controls (C0, DEL and C1), formats such as the bidirectional ones, and
// separators of lines, which are all that unicode has beside graphic characters and blanks of other
// widths.
func isUnsafe(r rune) bool {
	return !unicode.IsGraphic(r) || unicode.In(r, unicode.Zl, unicode.Zp)
}

// SafeLines is Safe for a text of several lines.
func SafeLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Safe(lines[i])
	}

	return strings.Join(lines, "\n")
}

// userInfo is what stands between the scheme and the last @ of an address. In an argument anything
// can.
var (
	userInfo     = regexp.MustCompile(`(?i)\b((?:amqps?|https?)://)\S*@`)
	argumentInfo = regexp.MustCompile(`(?is)\b((?:amqps?|https?)://).*@`)
)

// examples are what texts of help have in place of a user.
var examples = regexp.MustCompile(`(?i)^(?:amqps?|https?)://user:password@$`)

// hideAddresses takes users and passwords out of a text that may have an address in it.
func hideAddresses(text string) string { return hide(userInfo, text) }

// hideArguments does so in an error about the command line, which shows what was given: perhaps the
// value of another flag.
func hideArguments(text string) string { return hide(argumentInfo, text) }

func hide(info *regexp.Regexp, text string) string {
	return info.ReplaceAllStringFunc(text, func(found string) string {
		if examples.MatchString(found) {
			return found
		}

		return info.ReplaceAllString(found, "$1...@")
	})
}
