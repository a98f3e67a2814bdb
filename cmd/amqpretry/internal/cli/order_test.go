package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Whoever waits is told why, how long it takes, and how to end it: at once, when interrupted, and
// from time to time.
func TestOrderIsTold(t *testing.T) {
	w := newWorld(nil)
	ctx, cancel := context.WithCancel(t.Context())
	w.ctx = ctx
	o := &order{session: w.Session, every: time.Hour}
	o.tell(10, 1000)
	assert.Equal(t, "Restoring the order of the queue: 10 of at most 1000 messages done. Messages that were read "+
		"before would otherwise be behind the others. To stop at once, and change the order, interrupt (^C) twice.\n",
		w.err.String())
	o.tell(20, 1000)
	assert.Equal(t, 1, strings.Count(w.err.String(), "\n"), "not too often")

	cancel()
	w.err.Reset()
	o.began = time.Now().Add(-10 * time.Second)
	o.tell(200, 1000)
	assert.Contains(t, w.err.String(), "200 of at most 1000 messages done, about 40s left.")
	assert.Contains(t, w.err.String(), "interrupt (^C) once more.\n")
	o.tell(300, 1000)
	assert.Equal(t, 1, strings.Count(w.err.String(), "\n"))

	o.every = 0
	o.tell(400, 1000)
	assert.Equal(t, 2, strings.Count(w.err.String(), "\n"))

	w.err.Reset()
	o.every = time.Hour
	o.tell(1, 50)
	assert.Contains(t, w.err.String(), "1 of at most 50 messages done. Messages", "another one")
}
