// Package amqpretry gives Watermill routers durable, delayed, non-blocking retries and a
// dead-letter queue on watermill-amqp and RabbitMQ. Packages amqpv2 and amqpv3 make a retrier of a
// config of watermill-amqp.
//
//	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{Policies: policies, Logger: logger})
//	defer retrier.Close()                                 // after the router
//	subscriber, err := retrier.NewSubscriber()            // a message.Subscriber
//	router.AddMiddleware(retrier.Middleware)              // outermost
//	router.AddPlugin(retrier.CheckRouter)                 // Run fails if their order is wrong
//
// # The way of one message
//
//	             ┌─────────────── default exchange, key Q ◄───────────────┐
//	             ▼                                                        │ TTL expires
//	publisher ─► Q ─► subscriber ─► router ─► Middleware ─► handler       │
//	                      ▲                       │ error                 │
//	                      └── verdict ◄───────────┘                       │
//	                      │ copy confirmed, then acknowledged             │
//	                      ├── delay 30s ─► exchange Q.retry ─► Q.retry.30s ┘
//	                      └── the end   ─► exchange Q.retry ─► Q.dlq
//
// A failed message is published again, as it arrived, to the retry exchange of its queue, and
// acknowledged only when the broker has confirmed that copy. It waits in a queue whose TTL is the
// delay, and comes back to the queue that failed it and to no other. After its last retry it lies
// in the dead-letter queue with the reason, the error and its history on it.
//
// # Why it is safe
//
// The consumer alone acknowledges, and never before the handler succeeded or the copy is confirmed
// and was not returned. A copy without a confirmation keeps its delivery unacknowledged: the
// handler is not run again, other messages go on, up to the prefetch. Copies go over a connection
// of their own, one confirm channel for each main queue and exchange, so a blocked publisher stops
// no acknowledgement and a broken queue stops no other.
//
// # Two ways to consume
//
// Retrier.NewSubscriber is the retrier's own consumer, which keeps all promises. It declares what a
// topic needs when a router subscribes; CheckRouter and Subscriber.Prepare do that for many topics
// at a time. A stock amqp.NewSubscriber(retrier.Config(), logger) works too;
// docs/concepts/guarantees.md has the table of what it cannot promise.
//
// # Publish
//
// Retrier.NewPublisher takes the place of amqp.NewPublisher. Publish returns nil when the broker
// has all messages, and an error for one that no queue gets: package config/publish.
//
// # What happens, and what is left
//
// Options.OnEvent is told of everything that happens; package middleware/metrics makes Prometheus
// series of it, with the depths that Retrier.QueueDepths reads. Retrier.Health tells what is wrong
// now; package health serves it to probes. Retrier.NewDeadLetterSubscriber feeds an ordinary
// handler from a dead-letter queue.
package amqpretry
