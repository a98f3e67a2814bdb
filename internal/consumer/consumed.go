package consumer

import (
	"sync"

	"github.com/amqpretry/watermill-retry/internal/publish"
)

// consumed are the queues that a consumer has to do with, and what it knows of them. A queue is
// forgotten with its last user, so queues that come and go leave nothing.
type consumed struct {
	mu     sync.Mutex
	queues map[string]*consumedQueue
}

// consumedQueue is one of them. Its fields are guarded by consumed.mu.
type consumedQueue struct {
	opening      chan struct{} // a lock, see subscription.opening
	declarations map[string]*declaration
	users        int
}

// declaration is that of a topic and its queue: topics that share a queue have an exchange each.
type declaration struct {
	publish.Object
	users int // guarded by consumed.mu
}

// use is a claim on what is known of a queue and a topic.
type use struct {
	of    *consumed
	queue *Queue

	opening     chan struct{}
	declaration *declaration
}

// use returns a claim. Each ends with leave or keep.
func (c *consumed) use(queue *Queue) *use {
	c.mu.Lock()
	defer c.mu.Unlock()

	q := c.queues[queue.Name]
	if q == nil {
		q = &consumedQueue{opening: make(chan struct{}, 1), declarations: map[string]*declaration{}}
		c.queues[queue.Name] = q
	}
	d := q.declarations[queue.Topic]
	if d == nil {
		d = new(declaration)
		q.declarations[queue.Topic] = d
	}
	q.users++
	d.users++

	return &use{of: c, queue: queue, opening: q.opening, declaration: d}
}

// leave ends a claim, and forgets what nobody claims any more.
func (u *use) leave() { u.end(false) }

// keep ends a claim. What was declared is remembered until somebody has subscribed and left.
func (u *use) keep() { u.end(true) }

func (u *use) end(keep bool) {
	u.of.mu.Lock()
	defer u.of.mu.Unlock()

	q := u.of.queues[u.queue.Name]
	q.users--
	u.declaration.users--
	if keep {
		return
	}
	if u.declaration.users == 0 {
		delete(q.declarations, u.queue.Topic)
	}
	if q.users == 0 {
		delete(u.of.queues, u.queue.Name)
	}
}

// hasDeclared reports whether the topology of a topic was declared, over whatever connection, and
// nothing of it has been missed since.
func (c *consumed) hasDeclared(queue *Queue) bool {
	u := c.use(queue)
	defer u.leave()

	return u.declaration.WasDeclared()
}

// forget makes the topology of a queue be declared again, for all of its topics, because the queue
// is not there any more.
func (c *consumed) forget(queue string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if q := c.queues[queue]; q != nil {
		for _, d := range q.declarations {
			d.Forget()
		}
	}
}
