// Package consumer takes deliveries from RabbitMQ, hands them out as messages of Watermill, and
// acknowledges them when what has become of them is safe. It knows no watermill-amqp, whose
// versions share it.
//
//	Consumer ──► subscription ──► session ──► intake ──► worker ──► handout
//	               per Subscribe    per channel            per slot   per message
//
// One goroutine owns the broker's acknowledgement of a message: the worker that handed it out,
// until it passes it on to a forward, which acknowledges when the broker has confirmed the copy.
//
// An intake takes what the broker delivers to one consumer after the other. It is a state machine:
// the state, what happens, the next state, and what is done on the way there (states.go says what
// the words mean).
//
//	starting  backlog    → paused    giveBack
//	starting  healthy    → open      fit, handOut, grow
//	starting  over       → ended     end
//	starting  suspect    → alone     handOutAlone
//	open      among      → line      clear
//	open      backlog    → paused    giveBack
//	open      healthy    → open      fit, handOut, grow
//	open      misfit     → open      refit
//	open      over       → ended     end
//	open      suspect    → alone     handOutAlone
//	alone     over       → ended     end
//	alone     settled    → starting
//	alone     unsettled  → line      clear
//	line      late       → line      requeueLine
//	line      no line    → starting  awaitRoom, begin
//	line      over       → ended     end
//	line      settled    → line
//	line      suspect    → line      handOutAlone
//	line      unsettled  → line      requeueLine
//	paused    idle       → starting  begin
//	paused    over       → ended     end
//
// Captures and Stock do what can be done for messages that a subscriber of watermill-amqp itself
// has handed out.
package consumer
