// Package amqpv2 makes retriers of configs of watermill-amqp v2.
//
//	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{Policies: policies, Logger: logger})
//	defer retrier.Close()                                 // after the router
//	subscriber, err := retrier.NewSubscriber()            // a message.Subscriber
//	router.AddMiddleware(retrier.Middleware)              // outermost
//	router.AddPlugin(retrier.CheckRouter)                 // Run fails if their order is wrong
//
// Package amqpretry says what a retrier does; package amqpv3 is for watermill-amqp v3. A service
// that imports one of them does not compile the other version of watermill-amqp.
package amqpv2
