package redisstore

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxField is the longest handler, key or name that is part of a Redis key as it is.
const maxField = 128

// inboxKey is the key of a claim: `prefix:inbox:handler/key`. Neither of the last two has a colon
// or a slash, so no two claims have the same key, and no value has the key of a claim, whatever the
// prefixes are.
func (s *Store) inboxKey(handler, key string) string {
	return s.config.Prefix + ":inbox:" + field(handler) + "/" + field(key)
}

// valueKey is the key of a value: `prefix:value:name`.
func (s *Store) valueKey(name string) string {
	return s.config.Prefix + ":value:" + field(name)
}

// field writes any bytes as letters, digits, "-", "_", "." and "%XX". A longer one becomes "~" and
// its SHA-256.
func field(s string) string {
	if len(s) > maxField {
		sum := sha256.Sum256([]byte(s))

		return "~" + hex.EncodeToString(sum[:])
	}
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}

	return b.String()
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.'
}
