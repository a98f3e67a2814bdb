package cli

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestConfirm(t *testing.T) {
	w := newWorld(nil)
	assert.NoError(t, w.Confirm("Delete?", true))
	err := w.Confirm("Delete?", false)
	assert.ErrorContains(t, err, "--yes")
	code, _ := codeOf(err)
	assert.Equal(t, ExitUsage, code)

	w.InIsTerminal = true
	for answer, yes := range map[string]bool{"y\n": true, " YES \n": true, "n\n": false, "\n": false, "": false,
		"yesterday\n": false, "y": true} {
		w.In = strings.NewReader(answer)
		assert.Equal(t, yes, w.Confirm("Delete?", false) == nil, "%q", answer)
	}
	assert.Contains(t, w.err.String(), "Delete? [y/N] ")
}

func TestConfirmInterrupted(t *testing.T) {
	w := newWorld(nil)
	w.InIsTerminal = true
	reader, writer := io.Pipe() // nobody answers
	defer writer.Close()
	w.In = reader
	ctx, cancel := context.WithCancelCause(t.Context())
	w.ctx = ctx
	cancel(errInterrupted)
	assert.ErrorIs(t, w.Confirm("Delete?", false), errInterrupted)
}
