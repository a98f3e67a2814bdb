package publish

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// Early is a message that has come back before its delay was over.
type Early struct {
	// Left is when it began to wait, and Due when it should have come back.
	Left, Due time.Time
	// Pause is how long it is kept before it goes to wait again: as long as the broker does not
	// delay, it would be back at once.
	Pause time.Duration
}

// Trip is one of the waits of a message.
type Trip struct {
	// Message identifies the message: a message without one is not looked at.
	Message string
	// ID identifies the trip, and Count is how often the message had failed before it.
	ID    string
	Count int
}

// waits are the latest messages of a main queue that this process has sent to wait. Only who has
// sent a message to wait can tell by its own clock whether it comes back too early. Those do come
// back soon, so a few are enough.
//
// Where several processes consume the queue, another one may get it, and send it to wait again.
// When it is back here, its first wait must be over as well. Alone that is no evidence: there may
// be two of the message, as after a lost connection. So only those count that are back almost at
// once, and of which no second one was seen: a lost connection brings many of those at a time.
type waits struct {
	mu     sync.Mutex
	sent   map[string]wait // by message
	order  [mostWaits]string
	next   int
	odd    int       // that seem to be early, since one was in time
	seen   time.Time // when one was early
	told   time.Time // when that was logged
	rounds Rounds
}

type wait struct {
	Trip
	left, due time.Time
	back      bool
	twin      bool // there are, or were, two of the message
}

const (
	mostWaits = 512
	// earlyPart is the part of a delay that may be missing: a tenth, as the clock of a broker may
	// be set meanwhile.
	earlyPart = 10
	// mostOdd is how many that seem to be early are believed.
	mostOdd = 3
	// earlyFor is how long it is believed of all that one was early.
	earlyFor = time.Minute
	// earlyAgain is how long it takes until the log tells again.
	earlyAgain = 5 * time.Minute

	firstPause = time.Second
	lastPause  = 30 * time.Second
)

func newWaits() waits {
	return waits{sent: map[string]wait{}, rounds: Rounds{First: firstPause, Last: lastPause}}
}

// leave notes that a message is about to go.
func (w *waits) leave(t Trip, now, due time.Time) {
	if t.Message == "" || len(t.Message) > wire.MaxNameBytes || !due.After(now) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()

	sent, known := w.sent[t.Message]
	if !known {
		delete(w.sent, w.order[w.next])
		w.order[w.next] = t.Message
		w.next = (w.next + 1) % mostWaits
	}
	twin := sent.twin
	if known && !sent.back && sent.Count == t.Count {
		twin = true // the first was not confirmed, and may be there as well
		if sent.due.After(now) {
			now, due = sent.left, sent.due
		}
	}
	w.sent[t.Message] = wait{t, now, due, false, twin}
}

// back notes that a message has come back, and tells whether that is too early, and to be logged.
func (w *waits) back(t Trip, now time.Time) (early *Early, log bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	sent, known := w.sent[t.Message]
	if known && t.Count < sent.Count {
		sent.twin = true
		w.sent[t.Message] = sent
		known = false
	}
	if !known {
		return nil, false
	}
	took, delay := now.Sub(sent.left), sent.due.Sub(sent.left)
	back := sent
	back.back = true
	w.sent[t.Message] = back
	switch same := t == sent.Trip; {
	case same && took >= delay-delay/earlyPart:
		w.odd, w.seen = 0, time.Time{}
		w.rounds.Reset()

		return nil, false
	case !same && (sent.twin || took >= delay/earlyPart):
		return nil, false
	case !same && w.odd+1 < mostOdd && (w.seen.IsZero() || now.Sub(w.seen) > earlyFor):
		w.odd++
		return nil, false
	}
	w.seen = now
	pause, _ := w.rounds.Next(now)
	if log = w.told.IsZero() || now.Sub(w.told) > earlyAgain; log {
		w.told = now
	}

	return &Early{Left: sent.left, Due: sent.due, Pause: min(pause, sent.due.Sub(now))}, log
}

// Leaving notes that the broker is about to be given a message that it is to bring back after a
// delay.
func (q *QueueForwarder) Leaving(t Trip, delay time.Duration) {
	now := time.Now()
	q.waits.leave(t, now, now.Add(delay))
}

// copying notes that a copy is about to be published. request is what it was asked for, state what
// is published.
func (q *QueueForwarder) copying(publishing *amqp091.Publishing, state *wire.State, jittered time.Duration) {
	delay := cmp.Or(jittered, delayOf(state))
	if state.Count == header.CountDead || delay == 0 {
		return
	}
	now := time.Now()
	due := now.Add(delay)
	if until := state.NotBefore; !until.IsZero() && until.Before(due) {
		due = until // else a message would never be due that comes back early again and again
	}
	q.waits.leave(Trip{
		Message: codec.Identity(publishing.Headers, publishing.MessageId), Count: state.Count,
		ID: codec.HeaderText(publishing.Headers[header.ID]),
	}, now, due)
}

// Back notes that a message has come back from a wait, and tells whether it is too early. Where the
// broker does not delay native retries, copies take their place from then on.
func (q *QueueForwarder) Back(t Trip, now time.Time) *Early {
	early, log := q.waits.back(t, now)
	if early == nil {
		return nil
	}
	why := "does a policy of the broker give its retry queue a shorter message-ttl, or was the broker's clock set?"
	if q.plan.Strategy == config.StrategyNative && t.ID == "" {
		q.undelayed.Store(true)
		why = "no policy of the broker that is in effect gives the queue the delayed-retry-* that its policy needs. " +
			"Its retries are copies until this service is started again"
	}
	queue, took := q.plan.Queue, now.Sub(early.Left)
	err := fmt.Errorf("a message of queue %q came back after %s instead of %s: %s", queue,
		took.Round(time.Millisecond), early.Due.Sub(early.Left).Round(time.Millisecond), why)
	if log {
		q.forwarder.settings.Logger.Error("Retries come back too early; they wait again", err,
			watermill.LogFields{"amqp_queue_name": queue})
	}
	q.forwarder.settings.emit(retry.Event{Kind: retry.EventReturnedEarly, Queue: queue, Err: err, Took: took})

	return early
}

// Undelayed tells that the broker was seen not to delay native retries.
func (q *QueueForwarder) Undelayed() bool { return q.undelayed.Load() }

// Rounds are pauses that double with each round in which all that was sent away comes back.
type Rounds struct {
	// First and Last are the shortest and the longest pause.
	First, Last time.Duration

	pause time.Duration
	ends  time.Time // of the present round: what waits now is back then
}

// Next is how long to wait, and whether it is the first that waits.
func (r *Rounds) Next(now time.Time) (pause time.Duration, first bool) {
	first = r.pause == 0
	if first || !now.Before(r.ends) {
		r.pause = min(max(2*r.pause, r.First), r.Last)
		r.ends = now.Add(r.pause)
	}

	return r.pause, first
}

// Reset begins again with the first.
func (r *Rounds) Reset() { r.pause = 0 }
