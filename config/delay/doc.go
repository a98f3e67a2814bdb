// Package delay publishes messages with a delay, on any RabbitMQ from 3.10 on and without a plugin:
// a second, a weekend or three years. It takes the delays of Watermill's components/delay, so cqrs,
// requeuer, DelayOnError and code that was written for the SQL Pub/Subs work unchanged. In the code
// below, delay is this package, and wmdelay is an alias for Watermill's, which has the same name.
//
//	own, err := retrier.NewPublisher()                                 // for messages without a delay
//	publisher, err := retrier.NewDelayPublisher(own, delay.Options{})
//
//	wmdelay.Message(msg, wmdelay.For(37*time.Second))                  // or wmdelay.Until(monday)
//	err = publisher.Publish("reminders", msg)                          // returns when the broker has it
//
//	ctx = wmdelay.WithContext(ctx, wmdelay.For(24*time.Hour))          // for cqrs
//	err = commandBus.Send(ctx, &CancelOrder{ID: id})
//
// Options.DefaultDelayGenerator gives a delay to messages that have none.
//
// # The way of one message
//
//	Publish ─┬─ no delay ──► the wrapped publisher
//	         ├─ past ──────► the topic's exchange, or its queue
//	         └─ 37s ───────► level 1: queue 30s ─► level 0: queue 7s ─► orders.landing ─► the topic's exchange, or its queue
//	                         └──────── the ladder, shared by all ───┘    one for each topic
//
// The ladder is a set of quorum queues with a TTL, one for each digit of a delay: config.Ladder
// describes it. It is declared when the first message has to wait. A delay is rounded up to the
// ladder's unit, 1s by default. A message is never early. How late it is depends on the load: a
// burst in one queue of the ladder delays others in that queue.
//
// A topic is a target: the exchange and the routing key of the retrier's config, or a queue with
// the default exchange. When a message is due, all queues get it that are bound to the exchange
// then.
//
// # Why it is safe
//
// Publish returns nil when the broker has confirmed all messages with a delay. Confirms are
// pipelined: a call with 1,000 messages waits once. Publish publishes again after a lost connection
// or a refusal, until Options.PublishTimeout or the message's context ends. It then returns a
// *publish.Error, which names the messages that are not known to be stored, and says why.
// Duplicates are possible, losses are not: all queues on the way are quorum queues that dead-letter
// at least once.
//
// An operator may delete the ladder: the next publish that misses it declares it again. If the
// topic's queue does not exist, the reason is publish.ErrUnroutable, since a confirm only says that
// the ladder has the message.
//
// A single node that is killed right after the first delayed publish to a topic can start with a
// landing queue without leader (RabbitMQ 3.10 and 4.0). Later messages of the topic then wait until
// an operator deletes that queue:
// https://github.com/amqpretry/watermill-retry/blob/main/docs/how-to/operate-exact-delays.md#a-landing-queue-without-leader.
//
// No message reaches a queue that takes no part: a target takes part from the first message on that
// is published to it with a delay. Messages for any other target go to the ladder's queue
// "unroutable". A target that is full or down keeps nobody waiting: its messages wait in its
// landing queue, which has no limit.
//
// The broker believes some headers, so they are removed: x-death and the like, CC, BCC, and
// x-opt-*. So are the expiration, the reply-to amq.rabbitmq.reply-to and the retrier's own headers,
// but for a new amqpretry-id. The priority is at most 4, as RabbitMQ 4.0 would hold up others for
// higher ones. Nothing of this comes back on arrival.
//
// # What to know
//
// Consumers need the retrier's subscriber, or its marshaler with a stock one (config.ModeOff is
// enough): a message that has waited has an x-death header, over which watermill-amqp's own
// marshaler fails.
//
// A message that is due at an exchange without queues waits in the landing queue until a queue is
// bound. The broker tries again after dead_letter_worker_publisher_confirm_timeout, which is 3
// minutes by default.
//
// `amqpretry delays cancel` and package dlq cancel a message that waits. If its handler can look
// whether it is still wanted, that is simpler.
//
// Retrier.QueueDepths counts what waits. With AssumeTopology an operator provides the ladder, the
// landing queues and the exchanges: [topology.Ladder] has them as values.
package delay
