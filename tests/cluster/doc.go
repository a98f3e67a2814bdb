// Package cluster shows what holds on a cluster of three nodes while nodes are killed, stopped,
// frozen and cut off under load.
//
//	publishers ──► node 1 ─┐                    ┌─► service A (nodes 1, 2, 3)
//	           ──► node 2 ─┼─ main, retry and ──┤                             ──► every call and outcome ──► ledger ──► table
//	           ──► node 3 ─┘  dead-letter queues└─► service B (nodes 3, 1, 2)
//	                          ▲
//	                          └─ the publisher of service B, whose word for each message goes into the ledger as well
//
// Its tests take minutes and need a rabbitmq-server on this machine: `make cluster` runs them,
// which sets the build tag cluster. See docs/how-to/clusters.md.
package cluster
