package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/retry"
)

func TestAnswer_Next(t *testing.T) {
	judged := &Settlement{}
	for name, test := range map[string]struct {
		answer         Answer
		acked, closing bool
		want           Next
	}{
		"acked":                           {Answer{succeeded: true}, true, false, NextAcknowledge},
		"acked by itself":                 {Answer{}, true, false, NextAcknowledge},
		"acked, and a verdict":            {Answer{Settlement: judged}, true, false, NextCarryOut},
		"nacked with a verdict":           {Answer{Settlement: judged}, false, false, NextCarryOut},
		"nacked after a success":          {Answer{succeeded: true}, false, false, NextUnpublishable},
		"the same while closing":          {Answer{succeeded: true}, false, true, NextNack},
		"nacked":                          {Answer{}, false, false, NextNack},
		"refused":                         {Answer{refused: true}, false, false, NextGiveBack},
		"refused, and a verdict":          {Answer{refused: true, Settlement: judged}, false, false, NextGiveBack},
		"refused, and acked all the same": {Answer{refused: true}, true, false, NextGiveBack},
	} {
		assert.Equal(t, test.want, test.answer.Next(test.acked, test.closing), name)
	}
}

// The first verdict counts, which is that of the innermost middleware; one that comes after the answer is told so.
func TestHandout_Settle(t *testing.T) {
	var h Handout
	var abandoned error
	e := &Engine{OnEvent: func(event retry.Event) {
		if event.Kind == retry.EventAbandoned {
			abandoned = event.Err
		}
	}}
	late := Settlement{failure: failure{Engine: e}}

	none := (&Handout{}).Answer()
	assert.Nil(t, none.Settlement, "the middleware never saw it")

	require.NoError(t, h.Settle(t.Context(), Settlement{Verdict: retry.Verdict{Reason: "first"}}))
	require.NoError(t, h.Settle(t.Context(), Settlement{Verdict: retry.Verdict{Reason: "second"}}))
	assert.Equal(t, retry.Reason("first"), h.Answer().Settlement.Verdict.Reason)

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
