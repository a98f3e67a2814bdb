package delayscmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/dlqcmd"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
)

// ladders are those that the commands are about.
type ladders struct{ session *cli.Session }

// candidate is a ladder that may be there. One that is wanted is told of when it is not.
type candidate struct {
	topology.Ladder
	wanted bool
	use    use
}

// use is what a ladder is for, as far as that is known.
type use int

const (
	unknown use = iota // named with a flag
	retries            // of the policy file
	either             // the default one for retries, which the policy file does not have
	delayed            // the default one for delayed publishing, which the policy file does not have
)

// declare says what declares the ladder.
func (c candidate) declare() string {
	const (
		apply = "`amqpretry topology apply` declares it, and so do its services: at their start, and each minute " +
			"while messages of it wait"
		publish = "the next delayed publish declares it, at most 10 minutes after the last time"
	)
	switch c.use {
	case retries:
		return apply
	case delayed:
		return publish
	default:
		return "for exact retries, " + apply + "; for delayed publishing, " + publish
	}
}

// candidates are the ladder that is named, or else those of the policies and the default ones.
func (l *ladders) candidates() ([]candidate, error) {
	if ladder, named, err := l.session.Ladder(); err != nil {
		return nil, err
	} else if named {
		return []candidate{{ladder, true, unknown}}, nil
	}
	policies, err := l.session.Policies()
	if err != nil {
		return nil, err
	}

	var all []candidate
	add := func(c config.Ladder, use use) error {
		ladder, err := topology.NewLadder(c)
		if err == nil && !slices.ContainsFunc(all, func(c candidate) bool { return c.Name() == ladder.Name() }) {
			all = append(all, candidate{ladder, use == retries, use})
		}
		return err
	}
	used := []config.Policy{policies.For("")}
	for topic := range policies.Topics {
		used = append(used, policies.For(topic))
	}
	for _, policy := range used {
		if policy.Strategy == config.StrategyLadder {
			err = errors.Join(err, add(policy.Ladder, retries))
		}
	}
	err = errors.Join(err, add(config.RetryLadder(), either), add(config.ScheduleLadder(), delayed))
	slices.SortStableFunc(all, func(a, b candidate) int { return strings.Compare(a.Name(), b.Name()) })

	return all, err
}

// topologies are the candidates.
func (l *ladders) topologies() ([]topology.Ladder, error) {
	candidates, err := l.candidates()
	all := make([]topology.Ladder, len(candidates))
	for i, c := range candidates {
		all[i] = c.Ladder
	}

	return all, err
}

// withUnroutable are the candidates whose queue for unroutable messages is there, and the one that
// is named.
func (l *ladders) withUnroutable(ctx context.Context) ([]dlqcmd.Ladder, error) {
	all, err := l.candidates()
	if err != nil {
		return nil, err
	}
	if all[0].use == unknown { // it is named
		return []dlqcmd.Ladder{{Ladder: all[0].Ladder}}, nil
	}
	b, err := inspect.Connect(ctx, l.session.Dial, patience)
	if err != nil {
		return nil, err
	}
	defer b.Close()

	var found []dlqcmd.Ladder
	for _, c := range all {
		switch ready, there, err := ready(b, c.Unroutable()); {
		case err != nil:
			return nil, err
		case there:
			found = append(found, dlqcmd.Ladder{Ladder: c.Ladder, Ready: ready})
		}
	}

	return found, nil
}

// ready is how many messages of a queue are ready, if it is there. The broker asks a quorum queue
// for no longer than 250 ms and then says 0, so a 0 counts only when it is said again. RabbitMQ 4.3
// and later refuse users without permissions on the queue.
//
// Upstream: a passive declaration takes a permission.
func ready(b *inspect.Broker, queue string) (messages int, there bool, err error) {
	for range 2 {
		exists, n, _ := b.Queue(queue)
		switch {
		case !exists.Known:
			return 0, false, fmt.Errorf("cannot count the messages of queue %q: %w", queue, exists.Err)
		case !exists.Value || n > 0:
			return n, exists.Value, nil
		}
	}

	return 0, true, nil
}
