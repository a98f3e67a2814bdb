// Package transport is the amqp091 plumbing of the retrier, shared by the adapters for the versions of watermill-amqp: a
// reconnecting connection, the consumer, the forwarder, and the marshaler that never fails. It knows no watermill-amqp.
//
//	Connection ──► Link               one live connection; replaced after each loss, with backoff
//	Consumer   ──► subscription ──► session ──► worker ──► handle
//	                 per Subscribe    per channel  per slot   per message
//	Forwarder  ──► Lane               one confirm channel for each main queue and exchange
//
// One goroutine owns the broker's acknowledgement of a message: the worker that handed it out, until it passes it on to
// a forward, which acknowledges when the broker has confirmed the copy.
package transport
