// Package amqpv3 makes retriers of configs of watermill-amqp v3. Package amqpretry says what a
// retrier does.
//
//	retrier, err := amqpv3.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{Policies: policies, Logger: logger})
//	defer retrier.Close()                                 // after the router
//	subscriber, err := retrier.NewSubscriber()            // a message.Subscriber
//	router.AddMiddleware(retrier.Middleware)              // outermost
//	router.AddPlugin(retrier.CheckRouter)                 // Run fails if their order is wrong
//
// The topology and the messages are those of package amqpv2, for watermill-amqp v2: a queue may be
// served by services on v2 and on v3 at the same time. The differences are those of watermill-amqp
// itself: the routing key of a binding is generated of the topic and not of the queue; a
// TopologyBuilder is told the topic; and messages that were delivered before have
// amqp.MetadataRedeliveredKey in their metadata, from the retrier's own subscriber as from the
// stock one.
//
// A service that imports this package does not compile watermill-amqp v2.
package amqpv3
