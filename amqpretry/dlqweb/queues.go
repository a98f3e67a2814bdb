package dlqweb

import (
	"cmp"
	"context"
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
	// Oldest and Newest are times of last failures, as the read at ReadAt has seen them; not known
	// before it.
	Oldest time.Time `json:"oldest,omitzero"`
	Newest time.Time `json:"newest,omitzero"`
	ReadAt time.Time `json:"read_at,omitzero"`
	// Missing tells that the broker has no such queue.
	Missing bool `json:"missing,omitempty"`
}

// IsFull tells whether it has messages.
func (q queueState) IsFull() bool { return q.Messages != nil && *q.Messages > 0 }

// MainGone tells that its main queue is certainly not there.
func (q queueState) MainGone() bool { return q.MainQueueExists != nil && !*q.MainQueueExists }

// Unconsumed is how many messages its main queue has while nothing consumes them.
func (q queueState) Unconsumed() int64 {
	if q.Main == nil || q.Main.Messages == nil || q.Main.Consumers == nil || *q.Main.Consumers > 0 {
		return 0
	}

	return *q.Main.Messages
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
	past    map[string]*past
	visit   time.Time
	visited chan struct{} // has room for one visit that is not yet dealt with
	first   chan struct{} // closed with the first sample
	once    sync.Once
}

// past is how a queue has changed since the console started.
type past struct {
	deaths
	depth    int64
	lastHour hour
	trend    trend
}

// run samples until the console is closed.
func (s *sampler) run(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		s.sample(ctx)
		s.once.Do(func() { close(s.first) })
		s.mu.Lock()
		visited := time.Since(s.visit) < visitLife
		s.mu.Unlock()
		if visited {
			s.lookAround(ctx)
		}
		if !s.pause(ctx, ticker.C) {
			return
		}
	}
}

// pause waits for the next sample, and reads queues for a visit meanwhile. It returns false when
// the console is closed.
func (s *sampler) pause(ctx context.Context, next <-chan time.Time) bool {
	for {
		select {
		case <-next:
			return true
		case <-s.visited:
			s.lookAround(ctx)
		case <-ctx.Done():
			return false
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
	before := s.past
	s.past = make(map[string]*past, len(queues))
	for i := range queues {
		p := cmp.Or(before[queues[i].Queue], &past{})
		s.past[queues[i].Queue] = p
		s.count(p, queues[i], now)
		queues[i].Deaths = p.deaths
	}
	s.last = overview{At: now, Queues: queues, Managed: managed}
}

// count adds a sample to the past of a queue.
func (s *sampler) count(p *past, q queueState, now time.Time) {
	if q.Messages == nil {
		return
	}
	grown := max(0, *q.Messages-p.depth)
	p.depth = *q.Messages
	switch {
	case p.Since.IsZero():
		p.Since, grown = now, 0
	case s.console.runs.active(q.Queue): // what an import brings back has not died again
		grown = 0
	}
	p.AtLeast += grown
	p.lastHour.add(grown, now)
	p.trend.add(sample{Depth: *q.Messages, Deaths: grown})
}

// pastOf is a copy of what was seen of a queue.
func (s *sampler) pastOf(queue string) past {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.past[queue]
	if p == nil {
		return past{}
	}
	seen := *p
	seen.trend.samples = slices.Clone(p.trend.samples)

	return seen
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
			n := int64(max(ready, c.snapshots.held(queue.Name()))) // ready leaves out what the console reads now
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

// mostUnasked is up to how many messages a queue is read unasked, and unaskedAgain how long after
// the last read. For visitLife after a visit each sample counts, since the management API tells of
// new messages 5 seconds late.
const (
	mostUnasked  = 10_000
	unaskedAgain = time.Minute
	visitLife    = 3 * sampleEvery
)

// lookAround reads the queues that are not long, once for each visit: a page that stays open must
// not keep the broker busy.
func (s *sampler) lookAround(ctx context.Context) {
	s.mu.Lock()
	queues, visit := s.last.Queues, s.visit
	s.mu.Unlock()
	for _, q := range queues {
		if !q.IsFull() || *q.Messages > mostUnasked || s.console.runs.active(q.Queue) {
			continue
		}
		newest := s.console.snapshots.newest(q.Queue)
		if newest != nil && (int64(newest.Len()) == *q.Messages || visit.Sub(newest.Ended) < unaskedAgain) {
			continue
		}
		t := target{Queue: q.Queue, MainQueue: q.MainQueue}
		s.console.snapshots.wait(ctx, t, s.console.snapshots.view(t, wantAnother, anySnapshot), sampleEvery)
	}
}

// visitedNow tells that somebody has opened the overview.
func (s *sampler) visitedNow() {
	s.mu.Lock()
	s.visit = time.Now()
	s.mu.Unlock()
	select {
	case s.visited <- struct{}{}:
	default:
	}
}

// knownOf is what the newest read of a whole dead-letter queue has shown, at ReadAt. Before that
// it is zero.
type knownOf struct {
	Oldest, Newest, ReadAt time.Time
	// TopCause is the text of the most frequent error, ErrorType its type, and Share its part of
	// all messages, from 0 to 1.
	TopCause, ErrorType, Fingerprint string
	Share                            float64
}

// known is what was read of a dead-letter queue.
func (c *Console) known(queue string) knownOf {
	var k knownOf
	newest := c.snapshots.newest(queue)
	if newest == nil {
		return k
	}
	all := newest.Everything()
	k = knownOf{Oldest: all.Oldest, Newest: all.Newest, ReadAt: newest.Ended}
	for _, top := range all.Groups {
		if top.Parked < top.Messages {
			k.TopCause, k.ErrorType, k.Fingerprint = top.Pattern, top.ErrorType, top.ID
			k.Share = float64(top.Messages) / float64(all.Matched)
			break
		}
	}

	return k
}

// seen adds what is known of queues.
func (c *Console) seen(queues []queueState) {
	for i := range queues {
		k := c.known(queues[i].Queue)
		queues[i].Oldest, queues[i].Newest, queues[i].ReadAt = k.Oldest, k.Newest, k.ReadAt
	}
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

// Waiting is how many messages wait in its retry queues. Only the management API knows them.
func (q queueState) Waiting() *int64 {
	if q.MainQueueExists == nil {
		return nil
	}

	return sum(q.Retry)
}

func sum(queues []retryState) *int64 {
	total := int64(0)
	for _, q := range queues {
		if q.Messages == nil {
			return nil
		}
		total += *q.Messages
	}

	return &total
}

func depth(n *int64) string {
	if n == nil {
		return "?"
	}

	return units.Thousands(*n)
}
