// Package dlq browses, counts, exports, replays, moves, purges and imports dead letters.
//
//	            Browse, Stat, Get, Export: read and leave          Move ──► another queue
//	            ▲                                                  ▲
//	orders.dlq ─┴──────────────────────────────────────────────────┴─► Replay ──► orders   (never the exchange)
//
// Why it is safe:
//   - A message leaves the queue only after the broker has confirmed its copy, and has not returned
//     it. A purge removes a message only after the undo file has it. A process that is killed in
//     between leaves the message in both places.
//   - Browsing removes no message and keeps their order: see [Queue.Browse].
//   - A replay publishes only to the main queue that the caller names, never to an exchange or a
//     queue from a header.
//   - The memory holds a window of messages, however long the queue is.
package dlq
