// Package amqpretryv3 gives Watermill routers durable, delayed, non-blocking retries and a dead-letter queue on
// watermill-amqp v3 and RabbitMQ.
//
//	retrier, err := amqpretryv3.New(amqp.NewDurableQueueConfig(uri), amqpretryv3.Options{Policies: policies, Logger: logger})
//	defer retrier.Close()                                 // after the router
//	subscriber, err := retrier.NewSubscriber()            // a message.Subscriber
//	router.AddMiddleware(retrier.Middleware)              // outermost
//	router.AddPlugin(retrier.CheckRouter)                 // Run fails if their order is wrong
//
// It is package amqpretry for the other version of watermill-amqp, and all that is said there holds here: the same
// options, the same topology, the same messages. A queue may be served by services on v2 and on v3 at the same time.
//
// The differences are those of watermill-amqp itself: the routing key of a binding is generated of the topic and not
// of the queue; a TopologyBuilder is told the topic; and messages that were delivered before have
// amqp.MetadataRedeliveredKey in their metadata, from the retrier's own subscriber as from the stock one.
//
// A service that imports this package does not compile watermill-amqp v2, and one that imports package amqpretry does
// not compile v3.
package amqpretryv3
