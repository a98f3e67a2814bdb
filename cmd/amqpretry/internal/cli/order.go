package cli

import (
	"fmt"
	"time"
)

// order tells why a browse or a run still goes on that has all that it wanted.
type order struct {
	session      *Session
	every        time.Duration
	began, told  time.Time
	last         int
	interruption bool // told
}

// tell is told how many messages were passed, of at most so many.
func (o *order) tell(passed, most int) {
	now, interrupted := time.Now(), o.session.context().Err() != nil
	if passed < o.last || o.began.IsZero() { // another one
		o.began, o.told, o.interruption = now, time.Time{}, false
	}
	o.last = passed
	if now.Sub(o.told) < o.every && interrupted == o.interruption {
		return
	}
	first := o.told.IsZero()
	o.told, o.interruption = now, interrupted

	left := ""
	if spent := now.Sub(o.began); !first && passed > 0 {
		left = fmt.Sprintf(", about %s left", (spent * time.Duration(most-passed) / time.Duration(passed)).
			Round(time.Second))
	}
	how := "twice"
	if interrupted {
		how = "once more"
	}
	o.session.Note("Restoring the order of the queue: %d of at most %d messages done%s. Messages that were read "+
		"before would otherwise be behind the others. To stop at once, and change the order, interrupt (^C) %s.",
		passed, most, left, how)
}
