package dlqweb

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// someRuns are runs without a broker.
func someRuns(t *testing.T) (*runs, *bytes.Buffer) {
	t.Helper()
	journal, err := openJournal(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(journal.close)
	var audit bytes.Buffer
	c := &Console{config: Config{Logger: watermill.NopLogger{}, Audit: slog.NewJSONHandler(&audit, nil)},
		ctx: context.WithoutCancel(t.Context())}
	c.runs = &runs{console: c, journal: journal}

	return c.runs, &audit
}

func (k *runs) add(t *testing.T, by User, state runState, ready time.Time) *running {
	t.Helper()
	r := &running{ready: ready, who: visitor{User: by}, run: Run{ID: newID(time.Now()), By: by, State: state,
		wish: wish{Plan: dlq.Plan{Kind: dlq.Purge}, Queue: "orders.dlq"}}}
	require.NoError(t, k.journal.create(r.run))
	k.all = append(k.all, r)

	return r
}

// A run that nobody confirms is discarded after an hour, and says so.
func TestPlansExpire(t *testing.T) {
	t.Parallel()
	k, audit := someRuns(t)
	now := time.Now()
	old, young := k.add(t, "ada", stateReady, now.Add(-planLife)), k.add(t, "ada", stateReady, now.Add(-planLife+1))
	running, done := k.add(t, "ada", stateRunning, now.Add(-planLife)), k.add(t, "ada", stateDone, time.Time{})
	k.expire(now)
	run := old.snapshot()
	assert.Equal(t, stateDiscarded, run.State)
	assert.Equal(t, "nobody has confirmed it within an hour: plan it again", run.Error)
	assert.False(t, run.Ended.IsZero())
	assert.Equal(t, stateReady, young.snapshot().State)
	assert.Equal(t, stateRunning, running.snapshot().State)
	assert.Equal(t, stateDone, done.snapshot().State)
	assert.Equal(t, 1, strings.Count(audit.String(), `"outcome":"discarded"`))
	saved, err := k.journal.load()
	require.NoError(t, err)
	i := slices.IndexFunc(saved, func(r Run) bool { return r.ID == run.ID })
	assert.Equal(t, stateDiscarded, saved[i].State)
}

// Plans of others are in nobody's way: each user has a number of his own, and when all are taken,
// the oldest plan of the user who has most makes room.
func TestPlansOfOthers(t *testing.T) {
	t.Parallel()
	k, _ := someRuns(t)
	room := func(user User) (*running, error) { return k.makeRoom(wish{}, user) }
	for i := range mostPendingOfUser {
		_, err := room("ada")
		require.NoError(t, err, i)
		k.add(t, "ada", stateCounting, time.Time{})
	}
	_, err := room("ada")
	var p *problem
	require.ErrorAs(t, err, &p)
	assert.Equal(t, 429, p.Status)
	_, err = k.makeRoom(wish{UndoOf: "x"}, "ada")
	require.NoError(t, err, "an undo")
	victim, err := room("bob")
	require.NoError(t, err)
	assert.Nil(t, victim)

	for i := mostPendingOfUser; i < mostPending; i++ {
		k.add(t, User(fmt.Sprint(i)), stateReady, time.Now())
	}
	victim, err = room("bob")
	require.NoError(t, err)
	assert.Same(t, k.all[0], victim, "one that counts")
	stopped := false
	victim.stop = func() { stopped = true }
	k.discard(victim, "why")
	assert.True(t, stopped)
	assert.False(t, victim.isPending())
	victim, err = room("bob")
	require.NoError(t, err)
	assert.Nil(t, victim, "there is room now")

	k.add(t, "bob", stateCounting, time.Time{})
	k.all[5].run.State = stateReady
	victim, err = room("bob")
	require.NoError(t, err)
	assert.Same(t, k.all[5], victim, "one that is ready rather than one that counts")
}
