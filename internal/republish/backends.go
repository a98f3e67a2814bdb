package republish

import (
	"context"
	"sync"
	"time"

	"github.com/amqpretry/watermill-retry/config/topology"
)

// backendAge is how long what was declared of a backend is taken to be there.
const backendAge = time.Minute

// Backends declares what backends share: more than a hundred objects, so not for each queue that has a part in one.
type Backends struct {
	mu     sync.Mutex
	shared map[string]*sharedBackend // by name
}

// sharedBackend is the declaration of one of them.
type sharedBackend struct {
	Flight
	missed time.Time // when a part of a plan could not be declared last, guarded by backends.mu
}

// Declare declares a plan, with what its backend shares unless that was declared a moment ago. After an error the whole
// is declared next time. It waits no longer than ctx for a declaration that another caller has started.
func (b *Backends) Declare(ctx context.Context, channel topology.Channel, plan topology.Plan) error {
	if plan.Backend == nil {
		return plan.Declare(channel)
	}

	shared, since := b.of(plan.Backend.Name())
	if err := shared.DoWith(ctx, since, func() error { return plan.Backend.Shared().Declare(channel) }); err != nil {
		return err
	}
	err := plan.DeclareOwn(channel)
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		shared.missed = time.Now()
	}

	return err
}

// of returns a backend, and since when it must have been declared.
func (b *Backends) of(name string) (shared *sharedBackend, since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.shared == nil {
		b.shared = map[string]*sharedBackend{}
	}
	if b.shared[name] == nil {
		b.shared[name] = &sharedBackend{}
	}
	shared, since = b.shared[name], time.Now().Add(-backendAge)
	if shared.missed.After(since) {
		since = shared.missed
	}

	return shared, since
}
