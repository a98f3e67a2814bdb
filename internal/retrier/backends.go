package retrier

import (
	"sync"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
)

// backendAge is how long what was declared of a backend is taken to be there.
const backendAge = time.Minute

// backends declares what backends share: more than a hundred objects, so not for each queue that has a part in one.
type backends struct {
	mu       sync.Mutex
	declared map[string]time.Time // when, by name
}

// declare declares a plan, with what its backend shares unless that was declared a moment ago. After an error the whole
// is declared next time.
func (b *backends) declare(channel topology.Channel, plan topology.Plan) error {
	if plan.Backend == nil {
		return plan.Declare(channel)
	}

	b.mu.Lock() // those that come meanwhile wait for it
	defer b.mu.Unlock()

	name, now := plan.Backend.Name(), time.Now()
	if now.Sub(b.declared[name]) > backendAge {
		if err := plan.Backend.Shared().Declare(channel); err != nil {
			return err
		}
		if b.declared == nil {
			b.declared = map[string]time.Time{}
		}
		b.declared[name] = now
	}
	err := plan.DeclareOwn(channel)
	if err != nil {
		delete(b.declared, name)
	}

	return err
}
