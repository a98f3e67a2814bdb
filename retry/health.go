package retry

import "time"

// Health tells whether a process consumes, and what is wrong with it. It is for probes: package
// amqpretry/health serves it over HTTP.
type Health struct {
	// Ready tells whether the process consumes: each of its subscribers has begun to, and at least
	// one subscription still does, or did so within the last 10 seconds. A process without
	// subscribers is ready.
	Ready bool
	// Problems are sorted: first those for which the process is not ready, then by Kind, Queue and
	// Connection.
	Problems []Problem
}

// Problem is one thing that is wrong now. It is gone as soon as that is over.
type Problem struct {
	// Kind says what is not as it should be.
	Kind ProblemKind
	// Queue, Topic and Connection say where, each if it is known. Connection is as in [Event].
	Queue, Topic, Connection string
	// Since is when it began, as far as that is known.
	Since time.Time
	// Text says what is wrong, why, and what to do.
	Text string
	// Err is the cause; nil if there is none.
	Err error
	// NotReady tells that the process is not ready because of it.
	NotReady bool
}

// ProblemKind says what is wrong.
type ProblemKind string

// The kinds of problems, named after what is not as it should be.
const (
	// ProblemRunning is a process that has not begun to work yet, or has ended.
	ProblemRunning ProblemKind = "running"
	// ProblemConsumer is a subscription that should consume and does not.
	ProblemConsumer ProblemKind = "consumer"
	// ProblemLeader is a queue that the retrier consumes from, while the broker knows of no
	// consumer: a quorum queue without leader.
	ProblemLeader ProblemKind = "leader"
	// ProblemCopies are failed deliveries that are held, as the broker has not confirmed their
	// copies for Options.HoldWarning.
	ProblemCopies ProblemKind = "copies"
	// ProblemHandlers are handlers that still run 10 seconds after the broker has taken their
	// deliveries back.
	ProblemHandlers ProblemKind = "handlers"
	// ProblemAlarm is a connection that the broker blocks, for a memory or disk alarm.
	ProblemAlarm ProblemKind = "alarm"
	// ProblemConnection is a connection that is needed and not there.
	ProblemConnection ProblemKind = "connection"
	// ProblemCredentials is a connection whose credentials the broker refuses.
	ProblemCredentials ProblemKind = "credentials"
	// ProblemMainQueue is a main queue that a processor does not find.
	ProblemMainQueue ProblemKind = "main-queue"
	// ProblemProgress is a process that does nothing any more: only a restart helps.
	ProblemProgress ProblemKind = "progress"
)
