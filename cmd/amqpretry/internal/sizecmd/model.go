package sizecmd

import (
	"fmt"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// The costs of a single node, the worse ones of two versions of RabbitMQ. Those without another
// source are measured by BenchmarkSize in tests/bench; docs/concepts/sizing.md has the tables.
const (
	healthyMicros    = 51.0  // processor time of a message that succeeds
	deadLetterMicros = 59.0  // more, for one that goes to the dead-letter queue
	hopMicros        = 114.0 // docs/project/benchmarks.md, exact delays: (7.39 - 3.60) / 4 waits × 120 µs
	journalMemory    = 1.35  // memory for a byte of the journal of quorum queues
	measuredQueues   = 2500  // the most quorum queues that a node was measured with
	perConnection    = 2047  // channels, by RabbitMQ's default
)

// retryMicros is the processor time of a retry, with a single wait.
var retryMicros = map[string]float64{"queues": 177, "queues, classic": 269, "shared": 188, "ladder": 284, "cycle": 189}

// kind is what queues of a type take; idleMicros is processor time in a second.
type kind struct {
	kiB, diskKiB                             float64 // of a queue
	idleMicros, declareMillis, restartMillis float64 // of a queue
	messageKiB, overheadKiB, restartMicros   float64 // of a waiting message; the overhead is on the disk
	journalMiB                               float64 // of the disk is kept in memory as well
	perSecond                                float64 // retries that one retry queue hands back
}

// A node of RabbitMQ keeps in memory what quorum queues have written last: 512 MiB by default.
var (
	quorum = kind{kiB: 77, diskKiB: 138, idleMicros: 60, declareMillis: 7, restartMillis: 7.4, messageKiB: 0.2,
		overheadKiB: 0.34, restartMicros: 24, journalMiB: 512, perSecond: 5670}
	classic = kind{kiB: 45, diskKiB: 21, idleMicros: 8, declareMillis: 0.5, restartMillis: 4.4, messageKiB: 2.1,
		overheadKiB: 0.24, perSecond: 14170}
)

// load is the load of a broker, as the flags say it.
type load struct {
	Rate     float64 `json:"rate"`     // messages a second, in all main queues together
	Failures float64 `json:"failures"` // percentage of messages that fail
	Again    float64 `json:"again"`    // percentage of retries that fail
	Queues   int     `json:"queues"`   // main queues
	Classic  bool    `json:"classic"`  // main queues are
	Waiting  float64 `json:"waiting"`  // messages; 0 for as many as the rate makes
	Bytes    int     `json:"bytes"`    // of a waiting message, headers included
	Services int     `json:"services"` // processes, each of which consumes from every main queue
}

// estimate is what a load takes with one way to retry.
type estimate struct {
	Way         string   `json:"way"`
	Queues      int      `json:"queues"` // main queues included
	Retries     float64  `json:"retries_per_second"`
	DeadLetters float64  `json:"dead_letters_per_second"`
	Busiest     float64  `json:"busiest_queue_per_second"`
	Ceiling     float64  `json:"ceiling_per_second"`
	Waiting     float64  `json:"waiting"`
	MemoryMiB   float64  `json:"memory_mib"`
	DiskMiB     float64  `json:"disk_mib"`
	Cores       float64  `json:"cores"`
	RetryCores  float64  `json:"retry_cores"`
	Declare     float64  `json:"declare_seconds"`
	Restart     float64  `json:"restart_seconds"`
	Connections int      `json:"connections"`
	Channels    int      `json:"channels"`
	Beyond      []string `json:"beyond"`
}

// estimates are those of the ways that a policy allows; last, the one that may lose messages.
func (l load) estimates(policy config.Policy) (all []estimate) {
	for _, way := range []string{"queues", "shared", "ladder", "cycle", "queues, classic"} {
		p := policy
		strategy, _, isClassic := strings.Cut(way, ", ")
		p.Strategy, p.ClassicQueues = config.Strategy(strategy), isClassic
		if p.Strategy != config.StrategyLadder {
			p.Ladder = config.Ladder{}
		}
		plan, err := topology.New("orders", p, topology.Names{})
		if err == nil { // else such as several delays with cycle
			all = append(all, l.estimateOf(way, p.WithDefaults(), plan))
		}
	}

	return all
}

func (l load) estimateOf(way string, policy config.Policy, plan topology.Plan) estimate {
	e := estimate{Way: way, Beyond: []string{}}
	main, beside := quorum, quorum
	if l.Classic {
		main = classic
	}
	if policy.ClassicQueues {
		beside = classic
	}
	number := l.count(&e, plan, main, beside)
	l.flow(&e, policy, plan)

	waiting := e.Waiting
	stored := waiting * (float64(l.Bytes)/1024 + beside.overheadKiB) / 1024
	e.MemoryMiB += waiting*beside.messageKiB/1024 + min(stored, beside.journalMiB)*journalMemory
	e.DiskMiB += stored
	e.Restart += waiting * beside.restartMicros / 1e6
	e.Ceiling = beside.perSecond
	e.Cores += e.RetryCores + l.Rate*healthyMicros/1e6
	e.Connections = 2 * l.Services
	e.Channels = 2 * l.Queues * l.Services
	if plan.IsShared() {
		e.Channels += l.Queues * l.Services
	}
	e.limits(l, number)

	return e
}

// count adds what the queues take, and gives the number of quorum queues.
func (l load) count(e *estimate, plan topology.Plan, main, beside kind) (quorums int) {
	add := func(k kind, number int) {
		n := float64(number)
		e.Queues += number
		e.MemoryMiB += n * k.kiB / 1024
		e.DiskMiB += n * k.diskKiB / 1024
		e.Cores += n * k.idleMicros / 1e6
		e.Declare += n * k.declareMillis / 1e3
		e.Restart += n * k.restartMillis / 1e3
		if k == quorum {
			quorums += number
		}
	}
	add(main, l.Queues)
	if plan.Ladder != nil {
		add(quorum, len(plan.Ladder.Shared().Queues))
	}
	for _, queue := range plan.Queues {
		switch {
		case queue.Shared:
			add(beside, 1)
		case queue.Name == plan.DeadLetterQueue:
			add(quorum, l.Queues)
		default:
			add(beside, l.Queues)
		}
	}

	return quorums
}

// flow adds what the retries take.
func (l load) flow(e *estimate, policy config.Policy, plan topology.Plan) {
	rate, queues := l.Rate*l.Failures/100, map[time.Duration]float64{} // retries per second by the queue's delay
	mains := float64(l.Queues)
	if plan.IsShared() || plan.Ladder != nil {
		mains = 1
	}
	for _, delay := range policy.Schedule() {
		waits := []time.Duration{delay}
		if plan.Ladder != nil {
			waits = waitsOf(policy.Ladder, delay)
		}
		for _, wait := range waits {
			queues[wait] += rate / mains
			e.Busiest = max(e.Busiest, queues[wait])
		}
		e.Retries += rate
		e.Waiting += rate * delay.Seconds()
		e.RetryCores += rate * (retryMicros[e.Way] + float64(len(waits)-1)*hopMicros) / 1e6
		rate *= l.Again / 100
	}
	e.DeadLetters = rate
	e.RetryCores += rate * deadLetterMicros / 1e6
	if plan.Ladder != nil { // each retry passes the landing queue of its main queue
		e.Busiest = max(e.Busiest, e.Retries/float64(l.Queues))
	}
	if l.Waiting > 0 {
		e.Waiting = l.Waiting
	}
}

// waitsOf are those of a delay in the queues of a ladder, which have different delays.
func waitsOf(ladder config.Ladder, delay time.Duration) (waits []time.Duration) {
	digits := ladder.Digits(delay)
	for i, digit := range digits {
		if digit != 0 {
			waits = append(waits, ladder.TTL(len(digits)-1-i, digit))
		}
	}

	return waits
}

// limits says what is beyond what was measured to work.
func (e *estimate) limits(l load, quorums int) {
	beyond := func(format string, args ...any) { e.Beyond = append(e.Beyond, fmt.Sprintf(format, args...)) }
	if e.Busiest > e.Ceiling {
		beyond("a retry queue gets %.0f retries/s and hands back %.0f", e.Busiest, e.Ceiling)
	}
	if quorums > measuredQueues {
		beyond("%d quorum queues; measured up to %d on a node", quorums, measuredQueues)
	}
	copies := e.Channels/l.Services - l.Queues // over a connection of their own
	if channels := max(l.Queues, copies); channels > perConnection {
		beyond("a service opens up to %d channels on a connection, which has %d: use several retriers", channels,
			perConnection)
	}
}
