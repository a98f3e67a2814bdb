// Package topology says what the broker holds for the retries of one queue: a [Plan] of plain
// values, made without a broker, and a thin [Plan.Declare] that puts it there.
//
//	             default exchange, key orders ◄───────────────────────────┐ the delay is over
//	             ▼                                                        │
//	publisher ─► orders ─► consumer                                       │
//	                          ├─ amqpretry-delay: 30s ─► orders.retry ─► orders.retry.30s
//	                          └─ amqpretry-count: -1 ──► orders.retry ─► orders.dlq
//
// Why it is safe:
//   - A waiting message goes straight back to the queue that failed it, never through the exchange
//     it was first published to, so no other subscriber sees a retry.
//   - The name of a retry queue carries its delay, and no binding depends on the policy. A policy
//     can change at any time, with old and new instances side by side: the new one adds queues, and
//     what waits in the old ones comes back.
//   - Retry queues are quorum queues that hand over at least once: they keep a message until the
//     main queue has it.
//   - The main queue gets no argument, unless its policy asks for protection: an existing one can
//     be adopted, and left again.
//
// The package also has what a plan cannot do by itself: [Definitions] for an operator who
// provisions it, [ProtectPolicy] for a main queue that exists, and [Obsolete] with
// [Management.Retire] for the retry queues that no policy uses any more.
package topology
