// Package chaos proves that nothing is lost: processes of the library work on a private RabbitMQ
// while everything fails around them, and a ledger outside of the broker tells what became of each
// message.
//
//	publisher ──► RabbitMQ ◄──► proxy ◄──► worker (a process)      every call, outcome and event ──► ledger (a file for each process)
//	                 ▲            ▲           ▲                                                          │
//	              killed,       cut,        killed,                                                      ▼
//	              frozen, …   stalled, …   closed, …                          what was sent  ──►  judge  ──► report
//
// It is a module of its own, so that nobody who uses the library gets the proxy. See
// docs/project/proof.md.
package chaos
