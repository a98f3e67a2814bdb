package dlqweb

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// sampleEvery is how often the depths are asked for. The management API has new ones every 5
// seconds.
const sampleEvery = 5 * time.Second

// queueState is a dead-letter queue with what lies around it. A number that is not known is nil.
type queueState struct {
	Queue           string       `json:"queue"`
	MainQueue       string       `json:"main_queue"`
	MainQueueExists *bool        `json:"main_queue_exists"`
	Messages        *int64       `json:"messages"`
	Ready           *int64       `json:"ready"`
	Unacked         *int64       `json:"unacked"`
	Main            *mainState   `json:"main,omitempty"`
	Retry           []retryState `json:"retry_queues"`
	Deaths          deaths       `json:"deaths"`
	// Oldest and Newest are times of last failures, as a look at LookedAt has seen them; not known
	// before one.
	Oldest   time.Time `json:"oldest,omitzero"`
	Newest   time.Time `json:"newest,omitzero"`
	LookedAt time.Time `json:"looked_at,omitzero"`
	// Missing tells that the broker has no such queue.
	Missing bool `json:"missing,omitempty"`
}

// IsFull tells whether it has messages.
func (q queueState) IsFull() bool { return q.Messages != nil && *q.Messages > 0 }

// MainGone tells that its main queue is certainly not there.
func (q queueState) MainGone() bool { return q.MainQueueExists != nil && !*q.MainQueueExists }

// PerHour is its rate of deaths in words.
func (q queueState) PerHour() string {
	rate := q.Deaths.PerHour(time.Now())
	switch {
	case q.Deaths.Since.IsZero():
		return "not known"
	case rate < 10:
		return fmt.Sprintf("at least %.1f", rate)
	default:
		return "at least " + units.Thousands(int64(rate))
	}
}

type mainState struct {
	Messages  *int64 `json:"messages"`
	Consumers *int64 `json:"consumers"`
}

type retryState struct {
	Queue    string `json:"queue"`
	Delay    string `json:"delay"`
	Messages *int64 `json:"messages"`
	wait     time.Duration
}

// deaths are how often the depth was seen to grow. It is a lower bound: what dies and is taken out
// between two samples is not seen.
type deaths struct {
	AtLeast int64     `json:"at_least"`
	Since   time.Time `json:"since,omitzero"`
}

// PerHour is how many there were for each hour.
func (d deaths) PerHour(now time.Time) float64 {
	hours := now.Sub(d.Since).Hours()
	if d.Since.IsZero() || hours <= 0 {
		return 0
	}

	return float64(d.AtLeast) / max(hours, minRateSpan.Hours())
}

// minRateSpan keeps a rate from being made of a few seconds.
const minRateSpan = 5 * time.Minute

// overview is what the last sample has shown.
type overview struct {
	At     time.Time
	Queues []queueState
	// Managed tells that the management API has found the queues: all of the virtual host.
	Managed bool
	Err     error
}

// sampler asks for the depths from time to time.
type sampler struct {
	console *Console
	mu      sync.Mutex
	last    overview
	depth   map[string]int64
	deaths  map[string]deaths
	looked  map[string]lookedAt
	visit   time.Time
	first   chan struct{} // closed with the first sample
	once    sync.Once
}

// run samples until the console is closed.
func (s *sampler) run(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		s.sample(ctx)
		s.once.Do(func() { close(s.first) })
		s.lookAround(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// overview is the last sample; it waits for the first one.
func (s *sampler) overview(ctx context.Context) overview {
	select {
	case <-s.first:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.last
}

// state of one queue, as far as the last sample has it.
func (o overview) state(t target) (queueState, bool) {
	i := slices.IndexFunc(o.Queues, func(q queueState) bool { return q.Queue == t.Queue })
	if i < 0 {
		return queueState{Queue: t.Queue, MainQueue: t.MainQueue}, false
	}

	return o.Queues[i], true
}

func (s *sampler) sample(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*sampleEvery)
	defer cancel()
	queues, managed, err := s.console.queues(ctx)
	if ctx.Err() != nil && err == nil {
		err = context.Cause(ctx)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if s.last.Err == nil {
			s.console.config.Logger.Error("Cannot list the dead-letter queues", err, nil)
		}
		s.last.Err = err
		return
	}
	now := time.Now()
	for i := range queues {
		queues[i].Deaths = s.count(queues[i], now)
	}
	s.last = overview{At: now, Queues: queues, Managed: managed}
}

// count adds how much a queue has grown.
func (s *sampler) count(q queueState, now time.Time) deaths {
	if q.Messages == nil {
		return s.deaths[q.Queue]
	}
	before, known := s.depth[q.Queue]
	s.depth[q.Queue] = *q.Messages
	d := s.deaths[q.Queue]
	switch {
	case !known:
		d.Since = now
	case s.console.runs.active(q.Queue): // what an import brings back has not died again
	default:
		d.AtLeast += max(0, *q.Messages-before)
	}
	s.deaths[q.Queue] = d

	return d
}

// queues are the dead-letter queues with their depths.
func (c *Console) queues(ctx context.Context) (_ []queueState, managed bool, _ error) {
	api, err := c.managementAPI()
	switch {
	case err != nil:
		return nil, false, err
	case api == nil:
		queues, err := c.queuesByAMQP(ctx)
		return queues, false, err
	}
	counts, err := api.Counts(ctx)
	if err != nil {
		return nil, true, err
	}

	return c.around(counts), true, nil
}

// queuesByAMQP asks for the depths of those of Config.Queues.
func (c *Console) queuesByAMQP(ctx context.Context) ([]queueState, error) {
	client, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	var queues []queueState
	for _, mainQueue := range c.config.Queues {
		queue := client.Queue(mainQueue)
		q := queueState{Queue: queue.Name(), MainQueue: mainQueue}
		ready, _, err := queue.Ready(ctx)
		switch {
		case err == nil:
			n := int64(ready)
			q.Ready = &n
			q.Messages = &n
		case problemOf(err).Status == http.StatusNotFound:
			q.Missing = true
		default:
			return nil, err
		}
		queues = append(queues, q)
	}

	return queues, nil
}

// around finds the dead-letter queues among all queues, and what belongs to them.
func (c *Console) around(all []httpapi.Queue) []queueState {
	byName := make(map[string]*httpapi.Queue, len(all))
	for i := range all {
		byName[all[i].Name] = &all[i]
	}
	var queues []queueState
	for _, q := range all {
		mainQueue := c.mainQueueOf(q.Name)
		if mainQueue == "" {
			continue
		}
		main, exists := byName[mainQueue]
		state := queueState{Queue: q.Name, MainQueue: mainQueue, MainQueueExists: &exists, Messages: q.Messages,
			Ready: q.Ready, Unacked: q.Unacked, Retry: c.retryQueues(mainQueue, all)}
		if exists {
			state.Main = &mainState{main.Messages, main.Consumers}
		}
		queues = append(queues, state)
	}
	for _, mainQueue := range c.config.Queues {
		name := c.config.Broker.Names.DeadLetterQueue(mainQueue)
		if byName[name] == nil {
			_, exists := byName[mainQueue]
			queues = append(queues, queueState{Queue: name, MainQueue: mainQueue, MainQueueExists: &exists,
				Missing: true})
		}
	}
	slices.SortFunc(queues, func(a, b queueState) int { return cmp.Compare(a.Queue, b.Queue) })

	return queues
}

// looksWorthIt is up to how many messages a queue is looked at unasked, and visited how long after
// somebody was there.
const (
	looksWorthIt = 10_000
	visited      = 10 * time.Minute
	lookAgain    = time.Minute
)

// lookAround finds the oldest and the newest death of queues that are not long, as long as somebody
// looks at them.
func (s *sampler) lookAround(ctx context.Context) {
	s.mu.Lock()
	queues, idle := s.last.Queues, time.Since(s.visit) > visited
	s.mu.Unlock()
	if idle {
		return
	}
	for _, q := range queues {
		s.mu.Lock()
		before := s.looked[q.Queue]
		s.mu.Unlock()
		if !q.IsFull() || *q.Messages > looksWorthIt || before.messages == *q.Messages ||
			time.Since(before.at) < lookAgain || s.console.runs.active(q.Queue) {
			continue
		}
		s.mu.Lock()
		s.looked[q.Queue] = lookedAt{*q.Messages, time.Now()}
		s.mu.Unlock()
		t := target{q.Queue, q.MainQueue}
		s.console.looks.wait(ctx, t, s.console.looks.view(t, wantNew, ""), sampleEvery)
	}
}

// lookedAt is how many messages a queue had when it was looked at unasked.
type lookedAt struct {
	messages int64
	at       time.Time
}

// visit tells that somebody is there.
func (s *sampler) visitedNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visit = time.Now()
}

// retryQueues are those of a main queue of its own, the shortest delay first.
func (c *Console) retryQueues(mainQueue string, all []httpapi.Queue) []retryState {
	var found []retryState
	for _, pattern := range c.config.Broker.Names.RetryQueues(mainQueue, marker) {
		before, after, ok := strings.Cut(pattern, marker)
		if !ok || slices.Contains(c.config.Broker.Names.RetryQueues(mainQueue+marker, marker), pattern) { // shared
			continue
		}
		for _, q := range all {
			text, begins := strings.CutPrefix(q.Name, before)
			text, ends := strings.CutSuffix(text, after)
			if !begins || !ends {
				continue
			}
			if delay, err := config.ParseDelay(text); err == nil {
				found = append(found, retryState{Queue: q.Name, Delay: text, Messages: q.Messages, wait: delay})
			}
		}
	}
	slices.SortFunc(found, func(a, b retryState) int {
		return cmp.Or(cmp.Compare(a.wait, b.wait), cmp.Compare(a.Queue, b.Queue))
	})

	return found
}

// Waiting is how many messages wait in its retry queues, in words.
func (q queueState) Waiting() string { return depth(sum(q.Retry)) }
