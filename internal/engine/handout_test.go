package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/retry"
)

func TestHandout_Answer(t *testing.T) {
	judged, refused := &Settlement{}, errors.New("refused")
	for name, test := range map[string]struct {
		refusal        error
		settlement     *Settlement
		succeeded      bool
		acked, closing bool
		want           Next
	}{
		"acked":                           {nil, nil, true, true, false, NextAcknowledge},
		"acked by itself":                 {nil, nil, false, true, false, NextAcknowledge},
		"acked, and a verdict":            {nil, judged, false, true, false, NextCarryOut},
		"nacked with a verdict":           {nil, judged, false, false, false, NextCarryOut},
		"nacked after a success":          {nil, nil, true, false, false, NextUnpublishable},
		"the same while closing":          {nil, nil, true, false, true, NextNack},
		"nacked":                          {nil, nil, false, false, false, NextNack},
		"refused":                         {refused, nil, false, false, false, NextGiveBack},
		"refused, and a verdict":          {refused, judged, false, false, false, NextGiveBack},
		"refused, and acked all the same": {refused, nil, false, true, false, NextGiveBack},
	} {
		h := Handout{refusal: test.refusal, settlement: test.settlement, succeeded: test.succeeded}
		next, verdict := h.Answer(test.acked, test.closing)
		assert.Equal(t, test.want, next, name)
		assert.Same(t, test.settlement, verdict, name)
	}
}

// The first verdict counts, which is that of the innermost middleware; one that comes after the
// answer is told so.
func TestHandout_Settle(t *testing.T) {
	var h Handout
	var abandoned error
	e := &Engine{OnEvent: func(event retry.Event) {
		if event.Kind == retry.EventAbandoned {
			abandoned = event.Err
		}
	}}
	late := &Settlement{failure: failure{Engine: e}}

	_, none := (&Handout{}).Answer(true, false)
	assert.Nil(t, none, "the middleware never saw it")

	require.NoError(t, h.Settle(t.Context(), &Settlement{Verdict: retry.Verdict{Reason: "first"}}))
	require.NoError(t, h.Settle(t.Context(), &Settlement{Verdict: retry.Verdict{Reason: "second"}}))
	_, first := h.Answer(true, false)
	assert.Equal(t, retry.Reason("first"), first.Reason)

	require.ErrorIs(t, h.Settle(t.Context(), late), ErrSettled)
	require.ErrorIs(t, abandoned, ErrSettled)
	assert.False(t, h.Refused(errors.New("refused")), "too late")
}

func TestHandout_WaitsForTheLastMiddleware(t *testing.T) {
	h := &Handout{}
	assert.False(t, h.WasSeen())
	require.True(t, h.Wait(t.Context()), "no middleware was there")

	h.Enter("handler")
	h.Enter("handler") // one inside the other

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, h.Wait(ended), "both are inside")
	left := h.left

	h.Leave()
	select {
	case <-left:
		require.Fail(t, "the outer one is still inside")
	default:
	}

	waited := make(chan bool, 1)
	go func() { waited <- h.Wait(t.Context()) }()
	h.Leave()
	require.True(t, <-waited)
	<-left
	require.True(t, h.Wait(ended), "all have left")

	h.Enter("handler")
	h.Leave()
	require.True(t, h.Wait(ended), "a second one may come and go")
	assert.True(t, h.WasSeen())
}
