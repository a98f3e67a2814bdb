// Package consumer takes deliveries from RabbitMQ, hands them out as messages of Watermill, and acknowledges them when
// what has become of them is safe. It knows no watermill-amqp, whose versions share it.
//
//	Consumer ──► subscription ──► session ──► worker ──► handout
//	               per Subscribe    per channel  per slot   per message
//
// One goroutine owns the broker's acknowledgement of a message: the worker that handed it out, until it passes it on to
// a forward, which acknowledges when the broker has confirmed the copy.
//
// Captures and Stock do what can be done for messages that a subscriber of watermill-amqp itself has handed out.
package consumer
