package dlq

import "unicode/utf8"

// asIs are the ASCII characters that need no escape. Besides what JSON wants to have escaped, DEL is: it does something
// in a terminal.
var asIs = func() (is [256]bool) {
	for c := ' '; c < 0x7f; c++ {
		is[c] = c != '"' && c != '\\'
	}

	return is
}()

// isPlain tells the other characters that need none: all but those that move the cursor or turn the order of what
// is written round where somebody looks at them in a terminal, and line ends that others than we see.
func isPlain(r rune) bool {
	return r > 0x9f && (r < 0x2028 || r > 0x202e) && (r < 0x2066 || r > 0x2069)
}

// appendText appends a JSON string; nothing, and false, if the text is not UTF-8.
func appendText[T string | []byte](out []byte, text T) (_ []byte, ok bool) {
	const digits = "0123456789abcdef"
	begin := len(out)
	out = append(out, '"')
	done := 0
	for i := 0; i < len(text); {
		c := text[i]
		if asIs[c] {
			i++
			continue
		}

		r, size := utf8.DecodeRuneInString(string(text[i:min(len(text), i+utf8.UTFMax)]))
		if r == utf8.RuneError && size == 1 {
			return out[:begin], false
		}
		if isPlain(r) {
			i += size
			continue
		}
		out = append(out, text[done:i]...)
		switch r {
		case '"', '\\':
			out = append(out, '\\', c)
		case '\n':
			out = append(out, '\\', 'n')
		case '\r':
			out = append(out, '\\', 'r')
		case '\t':
			out = append(out, '\\', 't')
		default:
			out = append(out, '\\', 'u', digits[r>>12], digits[r>>8&15], digits[r>>4&15], digits[r&15])
		}
		i += size
		done = i
	}

	return append(append(out, text[done:]...), '"'), true
}

// appendKey appends the name of a further member; a name of ours, which needs no escapes.
func appendKey(out []byte, name string) []byte {
	if out[len(out)-1] != '{' {
		out = append(out, ',')
	}
	out = append(append(out, '"'), name...)

	return append(out, '"', ':')
}
