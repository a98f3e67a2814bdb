// Package publish has the options and the errors of the retrier's publisher, Retrier.NewPublisher
// of package amqpretry.
//
// Publish returns nil when the broker has every message of the call: it has confirmed each, and
// returned none. The messages of a call, and of all calls at the same time, are on their way
// together; none waits for the answer to another.
//
//	Publish ─► marshal, check all ─► exchange declared ─► publish: persistent, mandatory ─► confirm ─► nil
//	Publish ─┘                                            ▲      │ nack, lost connection, exchange missing
//	Publish ─┘                                            └──────┘ again with pauses, until Options.Timeout
//	                                                               returned: no queue ─► error, or ignored
//
// An [*Error] names each message that is not known to be stored, and says of each whether it may
// be. It does not name those that were confirmed. A message that may be stored and is published
// again can be there twice.
package publish
