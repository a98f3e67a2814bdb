package metrics

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/amqpretry/watermill-retry/retry"
)

const (
	// causeExpiry is how long a cause that is not seen keeps its series from others.
	causeExpiry = 24 * time.Hour
	// mostStrangers is how many causes without a series are remembered. A cause of one in so many
	// of them is recognized when it comes again, mostly.
	mostStrangers = 500
)

// causes counts the dead letters of a topic by fingerprint, for at most limit of them. A cause
// never loses its series to a more frequent one: a hostile publisher could then end the series of
// real causes by repeating a text. The second half of the series is for causes that come twice: a
// publisher who makes up a new text each time gets none of these.
type causes struct {
	vec   *prometheus.CounterVec
	topic string
	limit int

	mu        sync.Mutex
	seen      map[string]time.Time // those with series: when they were seen last
	strangers []string             // the last ones without, as a ring
	next      int                  // of the ring
}

func (c *causes) inc(e *retry.Event) {
	reason := listed(string(e.Verdict.Reason), reasons)
	cause := cmp.Or(e.Cause.Fingerprint(), other)

	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.seen[cause]; known || cause != other && c.admits(cause, e.At) {
		c.seen[cause] = e.At
	} else {
		cause = other
	}
	c.vec.WithLabelValues(c.topic, reason, cause).Inc()
}

// admits reports whether a cause gets a series.
func (c *causes) admits(cause string, now time.Time) bool {
	if len(c.seen) < (c.limit+1)/2 {
		return true
	}
	if !slices.Contains(c.strangers, cause) {
		if len(c.strangers) < mostStrangers {
			c.strangers = append(c.strangers, cause)
		} else {
			c.strangers[c.next] = cause
			c.next = (c.next + 1) % mostStrangers
		}
		return false
	}
	if len(c.seen) < c.limit {
		return true
	}
	for old, at := range c.seen {
		if now.Sub(at) > causeExpiry {
			delete(c.seen, old)
			c.vec.DeletePartialMatch(prometheus.Labels{labelTopic: c.topic, labelCause: old})
		}
	}

	return len(c.seen) < c.limit
}
