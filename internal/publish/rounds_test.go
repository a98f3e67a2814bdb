package publish

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
)

// openMessages are n that are not resolved.
func openMessages(n int) []*Message {
	messages := make([]*Message, n)
	for i := range messages {
		messages[i] = &Message{UUID: fmt.Sprint(i), ctx: context.Background()}
	}

	return messages
}

// outcome of a round: the first ones are brought in, the others have an error.
func outcome(round []*Message, in int, err error) {
	for i, m := range round {
		if m.Resolved = i < in; !m.Resolved {
			m.Err = err
		}
	}
}

// A full queue is offered twice of what it took last, at once when it took all, and soon when it took something.
func TestRounds_FullQueue(t *testing.T) {
	var r rounds
	b := Batch{Messages: openMessages(2000)}
	for i, step := range []struct {
		offered, in   int
		atLeast, most time.Duration // of the pause
	}{
		{2000, 100, 35 * time.Millisecond, 65 * time.Millisecond},
		{200, 10, 35 * time.Millisecond, 65 * time.Millisecond},
		{32, 0, 70 * time.Millisecond, 130 * time.Millisecond},
		{32, 0, 140 * time.Millisecond, 260 * time.Millisecond},
		{32, 32, 0, 0},
		{64, 64, 0, 0},
		{128, 50, 35 * time.Millisecond, 65 * time.Millisecond},
		{100, 0, 70 * time.Millisecond, 130 * time.Millisecond},
		{32, 32, 0, 0},
		{64, 0, 35 * time.Millisecond, 65 * time.Millisecond},
	} {
		round := r.next(b.Open())
		require.Len(t, round, step.offered, "round %d", i)
		outcome(round, step.in, ErrRefused)
		pause := r.pause(round)
		assert.GreaterOrEqual(t, pause, step.atLeast, "after round %d", i)
		assert.LessOrEqual(t, pause, step.most, "after round %d", i)
	}
}

// For any other reason everything is published again, after pauses that become longer.
func TestRounds_OtherReasons(t *testing.T) {
	var r rounds
	b := Batch{Messages: openMessages(500)}
	last := time.Duration(0)
	for i := range 3 {
		round := r.next(b.Open())
		require.Len(t, round, 500, "round %d", i)
		outcome(round, 0, errors.New("the connection was lost"))
		pause := r.pause(round)
		assert.Greater(t, pause, last)
		last = pause
	}
}

// A queue that stays full holds up neither the messages of another one, nor those that have failed for another reason.
func TestRounds_OtherTargets(t *testing.T) {
	var r rounds
	messages := openMessages(300)
	for i, m := range messages {
		m.target = topology.Target{Key: []string{"full", "other", "lost"}[i/100]}
		m.Err = ErrRefused
		if m.target.Key == "lost" {
			m.Err = errors.New("the channel was closed")
		}
	}
	r.pause(messages)
	offered := map[string]int{}
	for _, m := range r.next(messages) {
		offered[m.target.Key]++
	}
	assert.Equal(t, map[string]int{"full": leastRound, "other": leastRound, "lost": 100}, offered)
}

// Messages whose contexts have ended take no place of others.
func TestRounds_EndedContexts(t *testing.T) {
	var r rounds
	messages := openMessages(100)
	outcome(messages, 0, ErrRefused)
	r.pause(r.next(messages))
	ended := errors.New("the caller has gone")
	for _, m := range messages[:50] {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(ended)
		m.ctx = ctx
	}
	round := r.next(messages)
	require.Len(t, round, leastRound)
	assert.Equal(t, "50", round[0].UUID)
	assert.ErrorIs(t, messages[0].Err, ended)
	assert.ErrorIs(t, messages[0].Err, ErrRefused)
}
