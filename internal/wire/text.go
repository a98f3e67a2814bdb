package wire

import (
	"strings"
	"unicode/utf8"
)

// Bounds of what we add to a message, in bytes. With them all of our headers together stay below MaxOwnBytes.
const (
	MaxErrorBytes     = 2 << 10
	MaxErrorTypeBytes = 256
	MaxNameBytes      = 255 // queue, topic, handler, host, exchange, routing key, user id
	MaxCCBytes        = 1 << 10
	MaxOptBytes       = 1 << 10
	MaxHistoryBytes   = 6 << 10
	MaxUnknownBytes   = 512
	MaxEditsBytes     = 2 << 10
	MaxRemovedBytes   = 4 * MaxNameBytes
	MaxOwnBytes       = 16 << 10
)

const ellipsis = "…"

// Text makes s fit for a header: valid UTF-8 of at most limit bytes, cut between characters and marked with an
// ellipsis.
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
