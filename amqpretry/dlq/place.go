package dlq

import (
	"cmp"
	"context"
	"crypto/rand"
	"hash/maphash"
	"slices"
	"strconv"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// place is a queue in which messages wait.
type place struct {
	target    topology.Target // whose messages are asked for
	queue     string
	ttl       time.Duration
	arguments amqp091.Table // as planned

	// Of a ladder:
	ladder *topology.Ladder
	level  int

	// Of a retry queue: where it is published to, and whether other main queues use it.
	exchange string
	shared   bool
}

// serves tells whether a message waits for the target.
func (p *place) serves(key string) bool { return p.targetOf(key) == p.target }

// targetOf is where a message with this routing key goes from here, by the broker's own rules.
func (p *place) targetOf(key string) topology.Target {
	switch {
	case p.ladder != nil:
		target, _, _ := p.ladder.ParseKey(key)
		return target
	case p.shared:
		return topology.Target{Key: key}
	default:
		return p.target
	}
}

// rest is how long a message waits after this queue, by its routing key.
func (p *place) rest(key string) time.Duration {
	if p.ladder == nil {
		return 0
	}
	_, delay, _ := p.ladder.ParseKey(key)
	step := p.ladder.Config.TTL(p.level, 1)

	return delay % step
}

// wait reads when a message is due. Anybody can have written its headers: no message waits longer
// than the queues make it.
func (p *place) wait(d *amqp091.Delivery, now time.Time) *Wait {
	text := func(key string) string {
		s, _ := d.Headers[key].(string)
		return s
	}
	ttl, rest := p.ttl, p.rest(d.RoutingKey)
	if own, err := strconv.ParseUint(d.Expiration, 10, 40); err == nil {
		ttl = min(ttl, time.Duration(own)*time.Millisecond) //nolint:gosec // of 40 bits: tiers with jitter
	}
	failed := wire.ParseTime(text(header.LastFailure))
	w := &Wait{Queue: p.queue, Target: p.targetOf(d.RoutingKey), Due: now.Add(ttl + rest), DueBy: DueAtMost,
		NotBefore: sane(wire.ParseTime(text(header.NotBefore)))}
	longest := w.Due
	told := wire.ParseTime(text(header.Due))
	delay, err := config.ParseDelay(text(header.Delay))
	switch died := newestDeath(d.Headers); {
	case !told.IsZero() && !told.Before(failed): // else an older version has carried it along
		w.Due, w.DueBy = told, DueTold
	case !died.IsZero():
		w.Due, w.DueBy = died.Add(ttl+rest), DueEstimated
	case !failed.IsZero() && err == nil:
		w.Due, w.DueBy = failed.Add(delay), DueEstimated
	}
	if w.Due.After(longest) || !tellable(w.Due) {
		w.Due = longest
	}
	w.Due = w.Due.UTC()
	if w.DueBy != DueAtMost {
		w.release = w.Due.Add(-rest)
	}

	return w
}

// waitAgain completes a copy that waits here again as long as the queue makes it, and tells where
// it is published.
func (p *place) waitAgain(m *amqp091.Publishing, key string) (exchange, _ string) {
	if m.Headers == nil {
		m.Headers = amqp091.Table{}
	}
	m.Headers[header.ID] = rand.Text()
	m.Headers[header.Due] = wire.FormatTime(time.Now().Add(p.ttl + p.rest(key)))
	if p.ladder != nil {
		return p.ladder.Level(p.level), key
	}
	m.Headers[header.Delay] = config.FormatDelay(p.ttl)

	return p.exchange, p.target.Key
}

// newestDeath is when the message was dead-lettered into this queue; zero if it was published.
func newestDeath(headers amqp091.Table) time.Time {
	deaths, _ := headers[header.Death].([]any)
	if len(deaths) == 0 {
		return time.Time{}
	}
	newest, _ := deaths[0].(amqp091.Table)
	at, _ := newest["time"].(time.Time)

	return at
}

// waitIdentity tells messages that wait from each other. Each publish of a message is another one.
// The IDs of a delay publisher are numbers, which other publishers have as well.
func waitIdentity(headers amqp091.Table, messageID, key string, body []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	id, _ := headers[header.ID].(string)
	maphash.WriteComparable(&h, [3]string{id, codec.Identity(headers, messageID), key})
	_, _ = h.Write(body)

	return h.Sum64()
}

// older are the retry queues of the main queue that the management API shows, of all delays.
func (w *Waits) older(ctx context.Context, link *connection.Link) (found []*place, err error) {
	api := w.client.config.Management
	if api.URL == "" || w.MainQueue() == "" {
		return nil, nil
	}
	client, err := httpapi.New(api.URL, cmp.Or(api.VHost, link.Config.Vhost, "/"), api.HTTPClient)
	if err != nil {
		return nil, err
	}
	queues, err := client.Queues(ctx)
	if err != nil {
		return nil, err
	}
	for _, q := range queues {
		ttl, ok := header.Integer(q.Arguments[amqp091.QueueMessageTTLArg])
		if !ok || ttl < 1 || ttl > config.MaxDelay.Milliseconds() {
			continue
		}
		policy := config.Policy{Delays: []time.Duration{time.Duration(ttl) * time.Millisecond}}
		names := w.client.config.Names.RetryQueues(w.MainQueue(), config.FormatDelay(policy.Delays[0]))
		i := slices.Index(names[1:], q.Name) // the first is the landing queue, which nobody can read
		if i < 0 {
			continue
		}
		policy.ClassicQueues = i >= 2
		if policy.Strategy = config.StrategyQueues; i%2 == 1 {
			policy.Strategy = config.StrategyShared
		}
		places, err := (&Waits{client: w.client, target: w.target, policy: policy.WithDefaults()}).places()
		if err != nil {
			return nil, err
		}
		found = append(found, places...)
	}

	return found, nil
}
