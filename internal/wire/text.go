package wire

import (
	"strings"
	"unicode/utf8"
)

// Bounds of what we add to a message, in bytes. With them all of our headers together stay below
// MaxOwnBytes.
const (
	MaxErrorBytes     = 2 << 10
	MaxErrorTypeBytes = 256
	MaxNameBytes      = 255 // queue, topic, handler, host, exchange, routing key, user id
	MaxCCBytes        = 1 << 10
	MaxOptBytes       = 1 << 10
	MaxHistoryBytes   = 6 << 10
	MaxUnknownBytes   = 512
	MaxEditsBytes     = 2 << 10
	MaxParkedBytes    = 1 << 10
	MaxRemovedBytes   = 4 * MaxNameBytes
	MaxOwnBytes       = 16 << 10
)

const ellipsis = "…"

// Text makes s fit for a header: valid UTF-8 of at most limit bytes, cut between characters and
// marked with an ellipsis.
func Text(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	if limit < len(ellipsis) {
		return ""
	}

	end := limit - len(ellipsis)
	for !utf8.RuneStart(s[end]) {
		end--
	}

	return s[:end] + ellipsis
}

// traceparentBytes is the size of a W3C traceparent of version 00: version, trace id, span id and
// flags.
const traceparentBytes = len("00-00112233445566778899aabbccddeeff-0011223344556677-01")

// Traceparent returns s if it is a valid W3C traceparent of version 00, else an empty text. What a
// publisher has forged is as good as what it may write into the header traceparent.
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
