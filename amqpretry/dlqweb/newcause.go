package dlqweb

import (
	"context"
	"net/url"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/retry"
)

// NewCause is a cause that a dead-letter queue did not have before: see Config.OnNewCause. It has
// nothing of a message.
type NewCause struct {
	// Queue is the dead-letter queue, MainQueue the queue that has failed the messages.
	Queue     string `json:"queue"`
	MainQueue string `json:"main_queue"`
	// Fingerprint, ErrorType, Handler and Pattern are those of dlq.Fingerprint; the texts have at
	// most 300 bytes. Pattern is the error text without what differs from one message to the next.
	Fingerprint string       `json:"fingerprint"`
	Reason      retry.Reason `json:"reason"`
	ErrorType   string       `json:"error_type"`
	Handler     string       `json:"handler"`
	Pattern     string       `json:"pattern"`
	// Messages is how many there are, Newest the time of the last failure of the newest.
	Messages int       `json:"messages"`
	Newest   time.Time `json:"newest,omitzero"`
	// Page is the address of the console's page for them, relative to the console.
	Page string `json:"page"`
}

// mostCauses is how many causes are remembered for each queue.
const mostCauses = 5000

// causes remembers which causes each queue has had. It belongs to one goroutine.
type causes struct {
	console *Console
	seen    map[string]lastRead
	known   map[string]map[string]bool // by queue and fingerprint
}

// lastRead is how many messages a queue had when it was read for new causes.
type lastRead struct {
	messages int64
	at       time.Time
}

// run looks for new ones until the console is closed.
func (k *causes) run(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		for _, q := range k.console.sampler.overview(ctx).Queues {
			before := k.seen[q.Queue]
			if q.Messages == nil || *q.Messages > mostUnasked || time.Since(before.at) < unaskedAgain ||
				*q.Messages == before.messages && !before.at.IsZero() || k.console.runs.active(q.Queue) {
				continue
			}
			k.seen[q.Queue] = lastRead{*q.Messages, time.Now()}
			if err := k.read(ctx, target{Queue: q.Queue, MainQueue: q.MainQueue}); err != nil && ctx.Err() == nil {
				k.console.config.Logger.Error("Cannot look for new causes", err, watermill.LogFields{"queue": q.Queue})
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// read reads a queue. What its first read finds is known, not new.
func (k *causes) read(ctx context.Context, t target) error {
	client, err := k.console.client(ctx)
	if err != nil {
		return err
	}
	found := map[string]*NewCause{}
	known := k.known[t.Queue]
	err = client.DeadLetterQueue(t.Queue, t.MainQueue).Read(ctx, func(dlq.Stat) {}, func(l *dlq.DeadLetter) bool {
		l = k.console.redacted(l)
		f := l.Fingerprint()
		if one := found[f.ID]; one != nil {
			one.Messages++
			if l.LastFailure.After(one.Newest) {
				one.Newest = l.LastFailure
			}
		} else if !known[f.ID] && len(known)+len(found) < mostCauses {
			found[f.ID] = k.news(t, f, l)
		}
		return true
	})
	if err != nil {
		return err
	}
	if known == nil {
		k.known[t.Queue] = map[string]bool{}
	}
	for _, id := range sortedKeys(found) {
		k.known[t.Queue][id] = true
		if known != nil {
			k.console.config.OnNewCause(*found[id])
		}
	}

	return nil
}

func (k *causes) news(t target, f dlq.Fingerprint, l *dlq.DeadLetter) *NewCause {
	page := url.Values{"queue": {t.Queue}, "fingerprint": {f.ID}}

	return &NewCause{Queue: t.Queue, MainQueue: t.MainQueue, Fingerprint: f.ID, Reason: l.Reason,
		ErrorType: cut(f.ErrorType, mostSummary), Handler: cut(f.Handler, mostSummary),
		Pattern:  cut(f.Pattern, mostSummary),
		Messages: 1, Newest: l.LastFailure, Page: "queue?" + page.Encode()}
}
