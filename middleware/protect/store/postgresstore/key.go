package postgresstore

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	maxKey = 255 // bytes that a key may have and be stored as it is
	hashed = "sha256:"
)

// column returns what the table holds for a handler, a key or a name: the bytes themselves, or
// their SHA-256 when there are too many for an index. Keys that look like such a hash are hashed as
// well, so that the two never meet.
func column(s string) []byte {
	if len(s) <= maxKey && !strings.HasPrefix(s, hashed) {
		return []byte(s)
	}
	sum := sha256.Sum256([]byte(s))

	return append([]byte(hashed), hex.EncodeToString(sum[:])...)
}
