// Package publish publishes everything that the library publishes, until the broker has confirmed
// it. Then, and only then, may a delivery be acknowledged, or a call return nil.
//
//	Forwarder ─► QueueForwarder ─────┐   copies of failed messages, each until it is confirmed
//	Publisher ──────┬─► call ─► round ─┼─► sender ─► confirmChannel ─► pending
//	DelayPublisher ─┘                  │   one publish: mandatory, with its return, its confirm, or the loss of both
//	QueuePublisher ────────────────────┘   replayed and moved dead letters, for the tools
//
// Declared remembers what is declared already, for all of them and for package consumer.
package publish
