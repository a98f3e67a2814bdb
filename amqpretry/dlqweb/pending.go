package dlqweb

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

const (
	// mostPending is how many runs may be counted, or wait for somebody to confirm them. Each
	// remembers its selection: 8 MB for a million messages.
	mostPending = 50
	// mostPendingOfUser is how many of them one user may have.
	mostPendingOfUser = 10
	// planLife is how long a run that was counted waits for somebody to confirm it.
	planLife    = time.Hour
	expireEvery = time.Minute
)

// isPending tells whether a run counts for mostPending. The undo of a run does not: it remembers no
// selection, and nothing may be in its way.
func (r *running) isPending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.run.UndoOf == "" && r.discarded == "" && (r.run.State == stateCounting || r.run.State == stateReady)
}

// makeRoom refuses a run of a user who has too many that wait. If all together have too many, it
// returns the one to discard: the oldest of the user who has most. The lock is held.
func (k *runs) makeRoom(w wish, user User) (*running, error) {
	if w.UndoOf != "" {
		return nil, nil
	}
	pending := map[User][]*running{}
	n, most := 0, user
	for _, r := range k.all {
		if !r.isPending() {
			continue
		}
		by := r.run.By // which never changes
		pending[by] = append(pending[by], r)
		n++
		if len(pending[by]) > len(pending[most]) {
			most = by
		}
	}
	switch {
	case len(pending[user]) >= mostPendingOfUser:
		return nil, &problem{Status: http.StatusTooManyRequests, Title: "Too many of your runs wait to be confirmed",
			Detail: fmt.Sprintf("Each user can have %d.", mostPendingOfUser), Do: "Confirm or discard some of them.",
			retry: time.Minute}
	case n < mostPending:
		return nil, nil
	}
	victim := slices.IndexFunc(pending[most], func(r *running) bool { return r.snapshot().State == stateReady })

	return pending[most][max(0, victim)], nil
}

// discard ends a run that nobody has confirmed.
func (k *runs) discard(r *running, why string) {
	k.change(r, true, func(run *Run) {
		switch run.State {
		case stateReady:
			run.State, run.Error, run.Ended = stateDiscarded, why, time.Now().UTC()
			r.plan = dlq.Plan{}
			k.console.auditEnd(r.who, *run)
		case stateCounting:
			r.discarded = why
			if r.stop != nil {
				r.stop()
			}
		}
	})
}

// expire discards the runs that nobody has confirmed in time.
func (k *runs) expire(now time.Time) {
	k.mu.Lock()
	all := slices.Clone(k.all)
	k.mu.Unlock()
	for _, r := range all {
		r.mu.Lock()
		expired := r.run.State == stateReady && now.Sub(r.ready) >= planLife
		r.mu.Unlock()
		if expired {
			k.discard(r, "nobody has confirmed it within an hour: plan it again")
		}
	}
}

// keepExpiring expires runs until the console is closed.
func (k *runs) keepExpiring(ctx context.Context) {
	ticker := time.NewTicker(expireEvery)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			k.expire(now)
		case <-ctx.Done():
			return
		}
	}
}
