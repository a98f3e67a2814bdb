// Package processor retries the messages of services that only reject: their queues dead-letter to
// failed queues, which a [Processor] consumes.
//
// It finds the failed queues, plans the topology of each main queue, and keeps one subscription for
// each failed queue. Package internal/consumer consumes, and package internal/publish publishes the
// copies.
package processor
