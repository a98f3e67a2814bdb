package publish

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/topology"
)

// openMessages are n that are not resolved.
func openMessages(n int) []*outgoing {
	messages := make([]*outgoing, n)
	for i := range messages {
		messages[i] = &outgoing{uuid: fmt.Sprint(i), ctx: context.Background()}
	}

	return messages
}

// resolve gives a round its outcome: the first ones are brought in, the others have an error.
func resolve(round []*outgoing, in int, err error) {
	for i, m := range round {
		if m.err = err; i < in {
			m.outcome, m.err = confirmed, nil
		}
	}
}

// A full queue is offered twice of what it took last, at once when it took all, and soon when it
// took something.
func TestRounds_FullQueue(t *testing.T) {
	c := call{messages: openMessages(2000)}
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
		round := c.next()
		require.Len(t, round, step.offered, "round %d", i)
		resolve(round, step.in, ErrRefused)
		pause := c.pause(round)
		assert.GreaterOrEqual(t, pause, step.atLeast, "after round %d", i)
		assert.LessOrEqual(t, pause, step.most, "after round %d", i)
	}
}

// For any other reason everything is published again, after pauses that become longer.
func TestRounds_OtherReasons(t *testing.T) {
	c := call{messages: openMessages(500)}
	last := time.Duration(0)
	for i := range 3 {
		round := c.next()
		require.Len(t, round, 500, "round %d", i)
		resolve(round, 0, errors.New("the connection was lost"))
		pause := c.pause(round)
		assert.Greater(t, pause, last)
		last = pause
	}
}

// A queue that stays full holds up neither the messages of another one, nor those that have failed
// for another reason.
func TestRounds_OtherTargets(t *testing.T) {
	messages := openMessages(300)
	for i, m := range messages {
		m.target = topology.Target{Key: []string{"full", "other", "lost"}[i/100]}
		m.err = ErrRefused
		if m.target.Key == "lost" {
			m.err = errors.New("the channel was closed")
		}
	}
	c := call{messages: messages}
	c.pause(messages)
	offered := map[string]int{}
	for _, m := range c.next() {
		offered[m.target.Key]++
	}
	assert.Equal(t, map[string]int{"full": leastRound, "other": leastRound, "lost": 100}, offered)
}

// Messages whose contexts have ended take no place of others.
func TestRounds_EndedContexts(t *testing.T) {
	messages := openMessages(100)
	resolve(messages, 0, ErrRefused)
	c := call{messages: messages}
	c.pause(c.next())
	ended := errors.New("the caller has gone")
	for _, m := range messages[:50] {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(ended)
		m.ctx = ctx
	}
	round := c.next()
	require.Len(t, round, leastRound)
	assert.Equal(t, "50", round[0].uuid)
	assert.ErrorIs(t, messages[0].err, ended)
	assert.ErrorIs(t, messages[0].err, ErrRefused)
}
