// Package dlq works with what lies in a dead-letter queue: it browses, counts, exports, and sends back.
//
//	            Browse, Stat, Get, Export: read and leave          Move ──► another queue
//	            ▲                                                  ▲
//	orders.dlq ─┴──────────────────────────────────────────────────┴─► Replay ──► orders   (never the exchange)
//
// Why it is safe:
//   - A message leaves the queue only when the broker has confirmed, and not returned, its copy; of what is deleted, when the
//     undo file has it. A process that is killed in between leaves it in both places, never in none.
//   - Browsing takes no message out and keeps their order, however often: see [Queue.Browse].
//   - A replay goes to the queue that has failed the message and to nobody else, and that queue is told by whoever runs it,
//     never by a header.
//   - Nothing is kept in memory but a window of messages, however long the queue is.
package dlq
