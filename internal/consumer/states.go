package consumer

import "fmt"

// state is what an intake does with the consumers of its session.
type state string

const (
	stateStarting state = "starting" // its consumer has just begun: what comes may have killed a process
	stateOpen     state = "open"     // the prefetch of its consumer follows the handlers
	stateAlone    state = "alone"    // a suspect is handed out alone, of a consumer with prefetch 1
	stateLine     state = "line"     // the consumer is cancelled; its suspects are handed out one after the other
	statePaused   state = "paused"   // there is no consumer until a worker is idle
	stateEnded    state = "ended"
)

// event is what happens to an intake: from outside, or as the result of its last action.
type event string

const (
	eventNone      event = ""
	eventHealthy   event = "healthy"   // a delivery that is no suspect
	eventSuspect   event = "suspect"   // a suspect, and nothing comes beside it: the prefetch is 1, or it was in line
	eventAmong     event = "among"     // a suspect, while others may be on their way to the same consumer
	eventSettled   event = "settled"   // the suspect that was handed out alone is settled
	eventUnsettled event = "unsettled" // it is not, within its bounds
	eventLate      event = "late"      // the line takes so long that the rest of it goes back
	eventNoLine    event = "no line"   // nothing is left in line
	eventMisfit    event = "misfit"    // the prefetch no longer fits the handlers, as a tick has found
	eventBacklog   event = "backlog"   // what waits for busy handlers is to go back, as a tick has found
	eventIdle      event = "idle"      // a worker is idle again, as a tick has found
	eventOver      event = "over"      // the broker delivers no more, or the subscription closes
)

// action is what an intake does on its way to its next state. After one that results in eventOver,
// the others are left out.
type action func(*intake) (result event)

// transition is where an event leads.
type transition struct {
	next    state
	actions []action
}

// transitions are those of an intake. They begin in stateStarting, or in statePaused where no
// worker is idle.
//
// The full prefetch is there before the first message is handed out, as its acknowledgement makes
// room for another one.
var transitions = map[state]map[event]transition{
	stateStarting: {
		eventHealthy: {stateOpen, []action{(*intake).fit, (*intake).handOut, (*intake).grow}},
		eventSuspect: {stateAlone, []action{(*intake).handOutAlone}},
		eventBacklog: {statePaused, []action{(*intake).giveBack}},
		eventOver:    {stateEnded, []action{(*intake).end}},
	},
	stateOpen: {
		eventHealthy: {stateOpen, []action{(*intake).fit, (*intake).handOut, (*intake).grow}},
		eventSuspect: {stateAlone, []action{(*intake).handOutAlone}},
		eventAmong:   {stateLine, []action{(*intake).clear}},
		eventMisfit:  {stateOpen, []action{(*intake).refit}},
		eventBacklog: {statePaused, []action{(*intake).giveBack}},
		eventOver:    {stateEnded, []action{(*intake).end}},
	},
	stateAlone: {
		eventSettled:   {stateStarting, nil},
		eventUnsettled: {stateLine, []action{(*intake).clear}},
		eventOver:      {stateEnded, []action{(*intake).end}},
	},
	stateLine: {
		eventSuspect:   {stateLine, []action{(*intake).handOutAlone}},
		eventSettled:   {stateLine, nil},
		eventUnsettled: {stateLine, []action{(*intake).requeueLine}},
		eventLate:      {stateLine, []action{(*intake).requeueLine}},
		eventNoLine:    {stateStarting, []action{(*intake).awaitRoom, (*intake).begin}},
		eventOver:      {stateEnded, []action{(*intake).end}},
	},
	statePaused: {
		eventIdle: {stateStarting, []action{(*intake).begin}},
		eventOver: {stateEnded, []action{(*intake).end}},
	},
}

// step is the state after an event, with what is done on the way there. It is a pure function.
func step(s state, e event) (state, []action) {
	t, ok := transitions[s][e]
	if !ok {
		panic(fmt.Sprintf("unreachable: %q while %q", e, s))
	}

	return t.next, t.actions
}
