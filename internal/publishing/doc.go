// Package publishing gets messages to the broker for the publishers of this module: a call returns when all of its messages
// are confirmed, or with what is known of each. It connects, declares, publishes pipelined, and publishes again what was
// not taken, until a bound.
//
//	Batch ─► Engine.Send ─► attempt: link ─► not blocked ─► Route.Ready ─► republish.Lane ─► answers
//	              ▲                                                             │
//	              └───────────── what is open, after a pause ◄──────────────────┘
package publishing
