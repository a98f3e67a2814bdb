package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/header"
)

func TestOptIsBounded(t *testing.T) {
	long := strings.Repeat("x", 600)
	text := EncodeOpt(map[string]string{"x-opt-a": long, "x-opt-b": long, "x-opt-c": "1",
		"x-opt-d": strings.Repeat("\x00", 300)})
	assert.LessOrEqual(t, len(text), MaxOptBytes)
	assert.Equal(t, map[string]string{"x-opt-a": long, "x-opt-c": "1"}, Opt(map[string]any{header.Opt: text}, nil),
		"what is too large is left out, not cut")
	assert.Empty(t, EncodeOpt(nil))
}

func TestOptReadsWhatThereIs(t *testing.T) {
	text := func(v any) string { return fmt.Sprint(v) }
	assert.Nil(t, Opt(map[string]any{"own": "1", "X-Opt-A": "1"}, text))
	assert.Equal(t, map[string]string{"x-opt-a": "2", "x-opt-b": "1"},
		Opt(map[string]any{"x-opt-a": int64(2), header.Opt: `{"x-opt-a":"1","x-opt-b":"1","own":"1"}`}, text))

	for _, forged := range []any{
		nil, int64(1), "", "[]", "null", "{", `{"x-opt-a":1}`, `{"own":"1"}`, `{"x-opt-a":"` +
			strings.Repeat("x", MaxOptBytes) + `"}`,
	} {
		assert.Empty(t, Opt(map[string]any{header.Opt: forged}, text), forged)
	}
}

// What is given up last is given up with the rest: the return does not need it.
func TestShrinkGivesUpOptLast(t *testing.T) {
	s := State{Queue: "q", Count: 1, Delay: "1s", Arrival: NewArrival("", "q", "", "", "")}
	s.Arrival.Opt = `{"x-opt-a":"1"}`
	assert.Equal(t, s.Arrival.Opt, s.Shrink(ShrinkSteps - 1).Headers("id")[header.Opt])
	assert.NotContains(t, s.Shrink(ShrinkSteps).Headers("id"), header.Opt)
}
