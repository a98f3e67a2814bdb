// Package amqpretry is the retrier for watermill-amqp v2, or with the build tag amqpv3 that for v3: tests that import
// it go over both.
package amqpretry
