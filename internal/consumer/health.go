package consumer

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/health"
)

// vitals are what a probe wants to know of a subscription.
type vitals struct {
	mu      sync.Mutex
	session *session  // the present one; nil if there is none
	stopped time.Time // since when there is none
	err     error     // why

	asked   time.Time // when the broker was asked for its consumers
	unknown time.Time // since when it has said 0 each time
	times   int       // for which it has
}

func (v *vitals) begin(s *session) {
	v.mu.Lock()
	defer v.mu.Unlock()

	v.session, v.err, v.unknown, v.times = s, nil, time.Time{}, 0
}

func (v *vitals) end() {
	v.mu.Lock()
	defer v.mu.Unlock()

	v.session, v.stopped = nil, time.Now()
}

func (v *vitals) failed(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()

	v.err = err
}

// Health tells how the subscriptions are that have begun and are not closing, and those that have
// been refused. It asks the broker nothing, but may have somebody ask.
func (c *Consumer) Health(now time.Time) (all []health.Subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()

	var quiet []*subscription
	for s := range c.subscriptions {
		refused := s.refused.Load()
		if c.closed || s.isClosing() && !refused {
			continue
		}
		h := health.Subscription{Topic: s.queue.Topic, Queue: s.queue.Name, Refused: refused}
		h.Running, h.Since = s.pace.withdrawn(now)
		s.health.mu.Lock()
		h.Err = s.health.err
		if s.health.session == nil {
			h.Stopped = s.health.stopped
		} else if last := s.active.at(); now.Sub(last) > lookEvery {
			quiet = append(quiet, s)
			if last.After(s.health.asked) { // what the broker has said is from before a message
				s.health.unknown, s.health.times = time.Time{}, 0
			}
			if s.health.times >= enoughZeros {
				h.Unknown = s.health.unknown
			}
		}
		s.health.mu.Unlock()
		all = append(all, h)
	}
	if len(quiet) > 0 && now.Sub(c.looked) > lookEvery {
		c.looked = now.Add(time.Hour) // nobody looks beside the one who does
		go c.lookForLeaders(quiet)
	}

	return all
}

const (
	// lookEvery is how often the broker is asked at most, for mostLooks queues.
	lookEvery = 10 * time.Second
	mostLooks = 20
	// enoughZeros are no coincidence: a broker that is busy says that a quorum queue has 0 messages
	// and 0 consumers when the queue has not answered it within 250 ms.
	enoughZeros = 3
)

// lookForLeaders asks the broker for the consumers of queues that nothing comes from: first where
// that is not sure yet, then where it was not asked for longest. A quorum queue without leader
// tells its consumers nothing, and has 0 of them.
func (c *Consumer) lookForLeaders(quiet []*subscription) {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.looked = time.Now()
	}()
	rank := map[*subscription]time.Time{}
	for _, s := range quiet {
		s.health.mu.Lock()
		if s.health.times%enoughZeros == 0 {
			rank[s] = s.health.asked
		}
		s.health.mu.Unlock()
	}
	slices.SortFunc(quiet, func(a, b *subscription) int {
		return cmp.Or(rank[a].Compare(rank[b]), cmp.Compare(a.queue.Name, b.queue.Name))
	})
	for _, s := range quiet[:min(len(quiet), mostLooks)] {
		s.health.look(time.Now())
	}
}

// look asks the broker whether it knows of the consumer of a session.
func (v *vitals) look(now time.Time) {
	v.mu.Lock()
	session := v.session
	v.asked = now
	v.mu.Unlock()
	if session == nil {
		return
	}
	queue, err := askFor(session.link, session.queue.Name)
	v.mu.Lock()
	defer v.mu.Unlock()

	switch {
	case session != v.session:
	case err != nil || queue.Consumers > 0 || session.intake.pauses.Load():
		v.unknown, v.times = time.Time{}, 0
	default:
		if v.times == 0 {
			v.unknown = now
		}
		v.times = min(v.times+1, enoughZeros)
	}
}

// askFor asks the broker for a queue. The channel is one of its own, as a queue that is not
// available just now closes it.
func askFor(link *connection.Link, name string) (queue amqp091.Queue, err error) {
	err = link.OnChannel(func(channel *amqp091.Channel) error {
		queue, err = channel.QueueDeclarePassive(name, false, false, false, false, nil)
		return err
	})

	return queue, err
}
