// Package middleware has the router middlewares that turn what a handler returns into retries and
// dead letters: [Retry], and [Poison] for handlers without retries. A retrier makes them: see
// Retrier.Middleware in package amqpretry, and package retry for what handlers return.
//
//	        ┌────────────────────── Retry.Middleware ──────────────────────┐
//	msg ──► │ handler ──► error, panic ──► classify ──► decide ──► verdict │ ──► settled by the consumer
//	        └──────────────────────────────────────────────────────────────┘
//
// The middleware neither publishes nor acknowledges with the retrier's own consumer: it leaves the
// verdict on the message and returns at once, and the consumer acknowledges the original only when
// the broker has confirmed the copy.
package middleware
