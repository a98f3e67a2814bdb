// Package publish publishes everything that the library publishes, until the broker has confirmed it. Then, and only then,
// may a delivery be acknowledged, or a call return nil.
//
//	Sender ─► confirmChannel ─► pending     one publish: mandatory, with its return, its confirm and what was lost
//
//	Forwarder ─► QueueForwarder             copies of failed messages, each until it is confirmed
//	Publisher, DelayPublisher ─► Engine     calls of Publish: all messages of a batch, with rounds, until a bound
//	QueuePublisher                          replayed and moved dead letters, for the tools
package publish
