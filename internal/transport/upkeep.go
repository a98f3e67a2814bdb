package transport

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// upkeepInterval is how often the way back is declared again while messages wait that need it.
const upkeepInterval = 15 * time.Second

// upkeep looks after the way back from shared retry queues. When somebody deletes the exchange that leads back, or the binding
// of a main queue, then no publish fails, nothing is returned, and nobody would notice: what comes out of a quorum retry
// queue stays there, and what comes out of a classic one is lost. So it is declared again and again, as long as copies wait
// that this process has published.
type upkeep struct {
	mu    sync.Mutex
	until time.Time // when the last of them is due
	timer *time.Timer
}

// lookAfter is called for every copy that has begun to wait.
func (l *Lane) lookAfter(published wire.State) {
	delay, err := config.ParseDelay(published.Delay)
	if err != nil || published.Count == wire.CountDead || l.plan.WayBack().IsEmpty() || !l.forwarder.settings.Redeclare {
		return
	}

	u := &l.upkeep
	u.mu.Lock()
	defer u.mu.Unlock()

	if due := time.Now().Add(delay); due.After(u.until) {
		u.until = due
	}
	if u.timer == nil {
		u.timer = time.AfterFunc(upkeepInterval, l.keepUp)
	}
}

// keepUp declares the way back, and comes again if it must.
func (l *Lane) keepUp() {
	ctx, cancel := context.WithTimeout(l.forwarder.ctx, upkeepInterval)
	defer cancel()

	if err := l.declareWayBack(ctx); err != nil && ctx.Err() == nil {
		l.forwarder.settings.Logger.Error("Cannot declare the way back from the shared retry queues", err,
			watermill.LogFields{"amqp_queue_name": l.plan.Queue})
	}

	u := &l.upkeep
	u.mu.Lock()
	defer u.mu.Unlock()

	u.timer = nil
	if l.forwarder.ctx.Err() == nil && time.Now().Before(u.until) {
		u.timer = time.AfterFunc(upkeepInterval, l.keepUp)
	}
}

func (l *Lane) declareWayBack(ctx context.Context) error {
	link, err := l.forwarder.connection.Link(ctx)
	if err != nil {
		return err
	}

	channel, err := link.Channel()
	if err != nil {
		return err
	}
	defer channel.Close()

	return l.plan.WayBack().Declare(channel)
}
