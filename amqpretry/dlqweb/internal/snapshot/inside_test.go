package snapshot

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A text is found in any case, at the beginning and at the end. Where lower case has other letters,
// the answer may be yes.
func TestHas(t *testing.T) {
	t.Parallel()
	for _, record := range []string{"refused", "REFUSED", "xReFuSeDx", "x refused", "refuse refused", "\u212a",
		"\u0130"} {
		assert.True(t, has([]byte(record), []byte("refused")), record)
	}
	for _, record := range []string{"", "refuse", "efused", "refus\u00e9d", "r e f u s e d"} {
		assert.False(t, has([]byte(record), []byte("refused")), record)
	}
	assert.True(t, has([]byte("HTTP 503"), []byte("503")))
	assert.True(t, has([]byte("[x]"), []byte("[")))
	assert.False(t, has([]byte("{x}"), []byte("[")), "0x20 apart, and no letters")
}
