// Package tracing makes OpenTelemetry spans of messages: when they are published, for each call of
// a handler, while they wait for a retry, and when they end in the dead-letter queue.
//
//	t, err := tracing.New(tracing.Config{})                                   // otel's global providers
//	retrier, err := amqpv2.New(conf, amqpretry.Options{OnEvent: t.OnEvent})
//	router.AddMiddleware(retrier.Middleware, t.Middleware)                    // inside of the retry middleware
//	publisher := t.Publisher(stock)                                           // any message.Publisher
//
// One Tracing serves any number of retriers, routers and publishers. docs/how-to/tracing.md is a
// tour.
//
// # Spans
//
// Names and attributes are those of the semantic conventions for messaging, version 1.39.0. The
// destination of a producer's span is the topic, or what [Config.Exchange] and [Config.RoutingKey]
// make of it; that of the others is the queue.
//
//	name                 kind      from and to
//	send orders          producer  a call of Publish; client, if the messages have creation contexts already
//	create orders        producer  a message of a call of Publish that has several
//	process orders       consumer  a call of a handler, also for a dead letter
//	wait orders          internal  from the decision to retry or postpone to the end of the delay
//	dead-letter orders   client    from the decision to the confirmation of the broker
//	drop orders          client    the acknowledgement of a message that is not wanted any more
//	abandon orders       client    a copy that was given up: the broker delivers the message again
//
// A handler's error is on the span of its call: as status, as an event "exception", and its type as
// error.type. A handler that postpones its message has not failed, nor has one whose message was
// taken away by a shutdown or a lost connection. The other spans have an error where no call shows
// it: the message could not be decoded, its consumers died of it, it expired, or its outputs could
// not be published.
//
// # Traces and links
//
// The message's creation context, which the publisher has put into its metadata, is the parent of
// all these spans, so one trace shows the whole life of a message. Each span of a consumer also
// links to it (amqpretry.link = publish), as the conventions ask. With [Config.LinkOnly] it is a
// link only. A handler that changes the metadata changes none of it.
//
// A span in the message's own context, such as that of a program that starts its router in one, is
// a link (amqpretry.link = context). It is the parent with [Config.LinkOnly], and for the first
// call of a message that has no creation context.
//
// Each span of a call links to the span of the call before: link attribute amqpretry.link =
// previous-call. A retry and a dead letter carry that span's context in the header amqpretry-trace.
// Where the broker itself brings the message back (see docs/reference/strategies.md), no header can
// be added, and this link is missing. The spans after a call link to it with amqpretry.link = call.
// If the message has no creation context, the call before is the parent.
//
// # Attributes
//
//	messaging.system, messaging.destination.name, messaging.operation.name, messaging.operation.type
//	messaging.message.id                          UUID of the message
//	messaging.batch.message_count                 of a call of Publish with several messages
//	messaging.rabbitmq.destination.routing_key    of a producer, with Config.RoutingKey
//	error.type                                    what the error's method ErrorType says, such as unroutable or nacked
//	                                              for a *publish.Error; else its Go type, without wrappers; else _OTHER
//	exception.stacktrace                          of a panic, with Options.PanicStacks
//	amqpretry.topic, amqpretry.handler            topic and handler's name in the router
//	amqpretry.attempt, amqpretry.last_attempt     number, 1 for the first; whether a plain error is the end; not where
//	                                              a message could not be decoded
//	amqpretry.try                                 call within the attempt, from the second on
//	amqpretry.calls                               calls of a handler over all lives of the message: before this one, or
//	                                              with it, on the spans after a call
//	amqpretry.replays                             how often it came back from the dead-letter queue, if it did
//	amqpretry.reason                              why it was dead-lettered, also on the span of a dead letter's handler
//	amqpretry.class                               class of the failure
//	amqpretry.delay                               seconds that a wait takes
//	amqpretry.withdrawn                           true if a shutdown or a lost connection took the message away
//
// # Error texts
//
// The retrier's Options.ErrorText redacts the texts of errors here as well. [Config.ErrorText] is
// for the errors of publishers, and of messages that no retrier has received.
package tracing
