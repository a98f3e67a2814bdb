// Package peers measures the retrier beside other clients that retry: go-rabbitmq (Go) and rascal
// (Node), on one broker, in one run.
//
//	make bench BENCH=Peers
//
// It is a module of its own, so that nobody else compiles them. rascal needs node and npm, which
// fetches it into a temporary folder; where they are missing its rows are left out. The environment
// is that of package bench: AMQP_URI, SCALE, REPORT.
package peers
