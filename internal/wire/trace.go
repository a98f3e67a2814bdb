package wire

import "strings"

// traceparentBytes is the size of a W3C traceparent of version 00: version, trace id, span id and flags.
const traceparentBytes = len("00-00112233445566778899aabbccddeeff-0011223344556677-01")

// Traceparent returns s if it is a valid W3C traceparent of version 00, else an empty text. What a publisher has forged
// is as good as what it may write into the header traceparent.
func Traceparent(s string) string {
	if len(s) != traceparentBytes || !strings.HasPrefix(s, "00-") || s[35] != '-' || s[52] != '-' {
		return ""
	}
	traceID, spanID, flags := s[3:35], s[36:52], s[53:]
	if !isHex(traceID) || !isHex(spanID) || !isHex(flags) || isZero(traceID) || isZero(spanID) {
		return ""
	}

	return s
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

func isZero(s string) bool { return strings.Trim(s, "0") == "" }
