package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// TestTraceparent: nothing but a valid traceparent is read, written or shown.
func TestTraceparent(t *testing.T) {
	zeros := "00-" + strings.Repeat("0", 32) + traceparent[35:]
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"none":             {nil, ""},
		"empty":            {"", ""},
		"valid":            {traceparent, traceparent},
		"not sampled":      {traceparent[:54] + "0", traceparent[:54] + "0"},
		"no text":          {[]byte(traceparent), ""},
		"upper case":       {strings.ToUpper(traceparent), ""},
		"another version":  {"01" + traceparent[2:], ""},
		"too long":         {traceparent + "-what-comes", ""},
		"too short":        {traceparent[:54], ""},
		"no first dash":    {"000" + traceparent[3:], ""},
		"no second dash":   {traceparent[:35] + "0" + traceparent[36:], ""},
		"no third dash":    {traceparent[:52] + "0" + traceparent[53:], ""},
		"trace id not hex": {traceparent[:10] + "g" + traceparent[11:], ""},
		"span id not hex":  {traceparent[:40] + "\x00" + traceparent[41:], ""},
		"flags not hex":    {traceparent[:54] + "x", ""},
		"no trace id":      {zeros, ""},
		"no span id":       {traceparent[:36] + strings.Repeat("0", 16) + traceparent[52:], ""},
		"not UTF-8":        {traceparent[:54] + "\xff", ""},
	} {
		t.Run(name, func(t *testing.T) {
			headers := table(wire.State{Queue: queue, Count: 1, Delay: "30s"}.Headers(id))
			headers[header.Trace] = test.value
			state, kind := wire.Read(headers, reading(queue+".retry.30s"))
			assert.Equal(t, wire.Retry, kind)
			assert.Equal(t, test.want, state.Trace)
			assert.NotContains(t, state.Unknown, header.Trace)
			assert.Equal(t, test.want, state.Headers(id)[header.Trace])

			if text, ok := test.value.(string); ok {
				state.Trace = text
				assert.Equal(t, test.want, state.Headers(id)[header.Trace], "it is checked when it is written as well")
			}

			headers[header.Count] = "-1"
			dead, ok := wire.ReadDead(headers, queue)
			assert.True(t, ok)
			assert.Equal(t, test.want, dead.Trace)
			replayed, kind := wire.Read(table(dead.ForReplay(queue, "run", "").Headers(id)), reading(""))
			assert.Equal(t, wire.Replay, kind)
			assert.Equal(t, test.want, replayed.Trace, "a replay goes on from the last call before it")

			state, _ = wire.Read(headers, wire.Reading{Queue: "another"})
			assert.Empty(t, state.Trace, "a fresh message has no earlier call")
		})
	}
}
