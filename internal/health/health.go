// Package health judges over a process by what is known of its subscriptions.
package health

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/amqpretry/watermill-retry/retry"
)

// Subscription is what is known of a subscription that has begun to consume.
type Subscription struct {
	Topic, Queue string
	// Stopped is since when it does not consume; zero while it does.
	Stopped time.Time
	// Err is why it does not, as far as that is known.
	Err error
	// Refused tells that it has ended by itself.
	Refused bool
	// Unknown is since when the broker has known of no consumer although there is one; zero if it
	// does.
	Unknown time.Time
	// Running handlers have lost their deliveries, the first one Since.
	Running int
	Since   time.Time
}

// Grace is how long a process stays ready when none of its subscriptions consumes: a connection
// that is closed comes back sooner.
const Grace = 10 * time.Second

// Judge says whether a process is ready that has these subscriptions, and these problems beside.
func Judge(now time.Time, subscriptions []Subscription, problems []retry.Problem) retry.Health {
	problems = slices.Clone(problems)
	idle := len(subscriptions) > 0 // none has consumed within Grace
	for _, s := range subscriptions {
		stopped := s.Stopped
		if stopped.IsZero() {
			stopped = s.Unknown
		}
		idle = idle && !stopped.IsZero() && now.Sub(stopped) >= Grace
	}
	for _, s := range subscriptions {
		problems = append(problems, s.problems(idle)...)
	}
	slices.SortFunc(problems, func(a, b retry.Problem) int {
		if a.NotReady != b.NotReady {
			return map[bool]int{true: -1, false: 1}[a.NotReady]
		}
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Queue, b.Queue),
			cmp.Compare(a.Connection, b.Connection), a.Since.Compare(b.Since))
	})

	return retry.Health{Ready: len(problems) == 0 || !problems[0].NotReady, Problems: problems}
}

// problems of a subscription. The process is idle if no other one consumes.
func (s Subscription) problems(idle bool) (all []retry.Problem) {
	p := retry.Problem{Topic: s.Topic, Queue: s.Queue, Err: s.Err, NotReady: idle}
	switch {
	case !s.Stopped.IsZero():
		cause, then := s.Err, "the service tries again by itself"
		if cause == nil {
			cause = errLost
		}
		if s.Refused { // a mistake in the program, which a rollout must not spread
			p.NotReady, then = true, "correct it and restart the service"
		}
		p.Kind, p.Since = retry.ProblemConsumer, s.Stopped
		p.Text = fmt.Sprintf("queue %q has no consumer: %v; %s", s.Queue, cause, then)
		all = append(all, p)
	case !s.Unknown.IsZero():
		p.Kind, p.Since = retry.ProblemLeader, s.Unknown
		p.Text = fmt.Sprintf("queue %q gets no messages: the broker knows of no consumer, as of a quorum queue "+
			"without leader; bring the nodes up that have its members (`rabbitmqctl list_unresponsive_queues`)",
			s.Queue)
		all = append(all, p)
	}
	if s.Running > 0 {
		p.Kind, p.Since, p.NotReady, p.Err = retry.ProblemHandlers, s.Since, false, nil
		p.Text = fmt.Sprintf("handlers of queue %q still run although the broker has requeued their messages: %d; end "+
			"handlers with the context of their message, and compare their time with the broker's consumer timeout",
			s.Queue, s.Running)
		all = append(all, p)
	}

	return all
}

var errLost = errors.New("the connection or the channel was lost")
