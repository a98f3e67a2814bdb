package topology

import (
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/amqpretry/watermill-retry/config"
)

// Names are the functions that name what is declared for a main queue. A nil one means the default.
// They must give the same name for the same parameters for ever, since messages wait under these
// names across deployments, and different names for different parameters.
type Names struct {
	// RetryExchange names the exchange through which failed messages go. Default: orders.retry. For
	// classic retry queues .classic is added to the name.
	RetryExchange func(queue string) string
	// RetryQueue names the queue in which messages wait for one delay.
	// Default: orders.retry.30s, and orders.retry.30s.classic for classic ones.
	RetryQueue func(RetryQueueParams) string
	// Rejected names the exchange to which a main queue with the strategy cycle dead-letters. Its
	// bindings are for one retry queue and one dead-letter queue, so the name must depend on
	// everything that theirs do. Default: orders.rejected.30s, with .classic added for such retry
	// queues, and with eight digits more where RetryQueue or DeadLetterQueue give other names than
	// by default.
	Rejected func(RetryQueueParams) string
	// DeadLetterQueue names the queue in which messages end. Default: orders.dlq.
	DeadLetterQueue func(queue string) string
	// Landing names the queue through which messages with exact delays come to a target. Default:
	// orders.landing for the queue orders, orders.exchange.landing for the exchange orders, and
	// orders.exchange.paid.landing for that exchange with the routing key paid.
	Landing func(Target) string
	// Shared begins the names of what all main queues with the strategy shared have in common: the
	// retry exchange, which has just this name, the retry queues, such as retry.30s, and the return
	// exchange, retry.return. Services that give it different values share nothing. Default: retry.
	Shared string
}

// RetryQueueParams are what the name of a retry queue must depend on, since the arguments of the
// queue do.
type RetryQueueParams struct {
	// Queue is the main queue, to which messages come back.
	Queue string
	// Delay in its canonical spelling, such as 30s or 1500ms: see config.FormatDelay.
	Delay string
	// Classic tells that the retry queue is a classic queue.
	Classic bool
}

// Target is where delayed messages go when they are due: an exchange with a routing key. The
// default exchange has an empty name, and its routing key is a queue.
type Target struct {
	// Exchange is empty for the default exchange.
	Exchange string `json:"exchange"`
	// Key is the routing key, and with the default exchange the name of the queue.
	Key string `json:"key"`
}

// String is the name of the target's queue or exchange, with the routing key where it has one.
func (t Target) String() string {
	switch {
	case t.Exchange == "":
		return t.Key
	case t.Key == "":
		return t.Exchange
	default:
		return t.Exchange + " with key " + t.Key
	}
}

// WithDefaults returns a copy in which no function is nil.
func (n Names) WithDefaults() Names {
	if n.RetryExchange == nil {
		n.RetryExchange = func(queue string) string { return queue + ".retry" }
	}
	if n.RetryQueue == nil {
		n.RetryQueue = defaultRetryQueue
	}
	if n.DeadLetterQueue == nil {
		n.DeadLetterQueue = defaultDeadLetterQueue
	}
	if n.Rejected == nil {
		n.Rejected = n.defaultRejected
	}
	if n.Landing == nil {
		n.Landing = defaultLanding
	}
	if n.Shared == "" {
		n.Shared = "retry"
	}
	return n
}

// classicSuffix ends the names of what exists for classic retry queues.
const classicSuffix = ".classic"

func defaultLanding(t Target) string {
	name := t.Key
	if t.Exchange != "" {
		name = t.Exchange + ".exchange"
		if strings.HasPrefix(name, "amq.") { // such names are the broker's own
			name = "exchange." + t.Exchange
		}
		if t.Key != "" {
			name += "." + t.Key
		}
	}
	return name + ".landing"
}

func defaultRetryQueue(p RetryQueueParams) string { return retryQueueName(p.Queue+".retry", p) }

func retryQueueName(prefix string, p RetryQueueParams) string {
	name := prefix + "." + p.Delay
	if p.Classic {
		name += classicSuffix
	}
	return name
}

func defaultDeadLetterQueue(queue string) string { return queue + ".dlq" }

// defaultRejected has a hash of the names that are not the default ones: two services may name
// their queues differently.
func (n Names) defaultRejected(p RetryQueueParams) string {
	name := retryQueueName(p.Queue+".rejected", p)
	retryQueue, deadLetterQueue := n.RetryQueue(p), n.DeadLetterQueue(p.Queue)
	if retryQueue != defaultRetryQueue(p) || deadLetterQueue != defaultDeadLetterQueue(p.Queue) {
		hash := fnv.New32a()
		_, _ = fmt.Fprintf(hash, "%q %q", retryQueue, deadLetterQueue) // never fails
		name += fmt.Sprintf(".%08x", hash.Sum32())
	}
	return name
}

func (n Names) returnExchange() string { return n.Shared + ".return" }

// RetryQueues lists the names of all queues from which a message can come back to a main queue
// after a delay: its own and shared ones, of both types, and the landing queue, since it may have
// begun to wait under another policy.
func (n Names) RetryQueues(queue, delay string) []string {
	n = n.WithDefaults()
	names := []string{n.Landing(Target{Key: queue})}
	for _, classic := range []bool{false, true} {
		params := RetryQueueParams{Queue: queue, Delay: delay, Classic: classic}
		names = append(names, n.RetryQueue(params), retryQueueName(n.Shared, params))
	}
	return names
}

// Returns tells whether a message in a queue of this name would come back to a main queue after a
// delay: it is the name of a retry queue of any main queue, or of the landing queue of mainQueue.
// It recognizes names that have the whole name of the main queue and the delay in them, each once.
func (n Names) Returns(name, mainQueue string) bool {
	const queueMark, delayMark = "\x00", "\x01" // which are in no name
	n = n.WithDefaults()
	for _, pattern := range n.RetryQueues(queueMark, delayMark) {
		if !strings.Contains(pattern, delayMark) {
			continue // a landing queue: others may end in the same word
		}
		text := regexp.QuoteMeta(pattern)
		text = strings.Replace(text, queueMark, "(?P<queue>.+)", 1)
		text = strings.Replace(text, delayMark, "(?P<delay>[0-9a-z]+)", 1)
		expression := regexp.MustCompile("^(?s:" + text + ")$")
		found := expression.FindStringSubmatch(name)
		if found == nil {
			continue
		}
		queue, delay := mainQueue, found[expression.SubexpIndex("delay")]
		if i := expression.SubexpIndex("queue"); i >= 0 {
			queue = found[i]
		}
		if _, err := config.ParseDelay(delay); err == nil && slices.Contains(n.RetryQueues(queue, delay), name) {
			return true
		}
	}

	return name == n.Landing(Target{Key: mainQueue})
}

// RejectedExchanges lists the names of all rejected exchanges through which a main queue can wait
// for a delay.
func (n Names) RejectedExchanges(queue, delay string) []string {
	n = n.WithDefaults()
	return []string{n.Rejected(RetryQueueParams{Queue: queue, Delay: delay}),
		n.Rejected(RetryQueueParams{Queue: queue, Delay: delay, Classic: true})}
}

// maxNameBytes is what a name on the wire has room for. A longer one would close the whole
// connection.
const maxNameBytes = 255

// checkName reports what RabbitMQ 3.10 to 4.3 would not take as it is. field is where the name can
// be changed.
func checkName(queue, object, name, field string) error {
	var errs []error
	add := func(problem string) {
		errs = append(errs, &NameError{Queue: queue, Object: object, Name: name, Problem: problem + "; give another " +
			"name through " + field})
	}
	switch {
	case name == "":
		add("the name is empty")
	case strings.HasPrefix(name, "amq."):
		add("names that begin with amq. are the broker's own")
	}
	if len(name) > maxNameBytes {
		add(fmt.Sprintf("the name has %d bytes, the broker takes %d", len(name), maxNameBytes))
	}
	if !utf8.ValidString(name) {
		add("the name is not valid UTF-8, for which the broker closes the connection")
	}
	if strings.ContainsAny(name, "\r\n") {
		// The broker removes line breaks when it declares, but not when it routes by name.
		add("the name has a line break, which the broker silently removes")
	}
	return errors.Join(errs...)
}
