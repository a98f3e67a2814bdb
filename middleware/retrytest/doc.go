// Package retrytest plays the life of a message under a policy, for unit tests: no broker, no
// waiting.
//
//	result := retrytest.Run(retrytest.Service{Policy: policy, ConsumerHandler: handler}, message.NewMessage("1", payload))
//	result.AssertDelays(t, time.Second, 5*time.Second)
//	result.AssertDeadLettered(t, retry.ReasonExhausted)
//
// [Run] calls the handler as often as the service would, advances a [Clock] by each wait, and gives
// the whole life: each call with its time, error and verdict, the waits, the end, and what the dead
// letter carries. When an assertion fails, it shows all of it.
//
// # Why it can be believed
//
// The package does not rebuild the decisions. The message goes through a real message.Router of
// Watermill, with the handler's name and topic in its context, and through the real retry
// middleware. Between two deliveries it is nothing but its payload and its headers, spelled and
// read by the code that does so on a broker: texts are cut, histories bounded, counts clamped and
// times rounded to milliseconds as there. Age, expiration and deadline are counted by the same
// function. The project's tests play docs/how-to/say-what-an-error-means.md here, word for word, as
// they do on a broker, and compare lives in both.
//
// # What it does not show
//
// The broker, and what comes of it: that a wait is a minimum, what other messages do meanwhile
// (order, the prefetch, a delay that begins behind a longer one under jitter), lost connections,
// copies that are not confirmed, delivery limits of queues, headers that leave no room in a frame
// (reason "too-large"), retry queues and permissions that are missing. It is the retrier's own
// subscriber on a quorum queue of RabbitMQ 4.3: a stock subscriber does not see that outputs could
// not be published, and classic queues count no crashes. See docs/concepts/guarantees.md, and
// docs/how-to/test-handlers.md for a tour.
package retrytest
