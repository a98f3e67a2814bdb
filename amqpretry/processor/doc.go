// Package processor retries the messages of services that only reject: their queues dead-letter to failed queues, which
// it consumes.
//
//	Q ─► consumer elsewhere ─ reject ─► failed queue F ─► processor ─ copy, confirmed ─► Q.retry.30s ─ TTL ─► Q
//	                                                           └────────────────────────► Q.dlq
//
// It finds the failed queues, plans the topology of each main queue, and keeps one subscription for each failed queue.
// Package internal/consumer consumes, and package internal/publish publishes the copies.
package processor
