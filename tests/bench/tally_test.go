package bench

import (
	"strconv"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
)

const numberHeader = "number"

// numbered is a header for fill.
func numbered(i int) amqp091.Table { return amqp091.Table{numberHeader: strconv.Itoa(i)} }

func numberOf(msg *message.Message) int {
	n, err := strconv.Atoi(msg.Metadata.Get(numberHeader))
	if err != nil {
		panic(err) // nobody else publishes there
	}

	return n
}

// tally tells the numbered messages apart that have been handled.
type tally struct {
	mu   sync.Mutex
	seen map[int]struct{}
	due  int
	all  chan struct{} // closed when as many as are due have been
}

func newTally(due int) *tally {
	return &tally{seen: make(map[int]struct{}, due), due: due, all: make(chan struct{})}
}

// add reports how many there are with this one, which may have been there before.
func (t *tally) add(msg *message.Message) int {
	t.mu.Lock()
	defer t.mu.Unlock()

	before := len(t.seen)
	t.seen[numberOf(msg)] = struct{}{}
	if len(t.seen) > before && len(t.seen) == t.due {
		close(t.all)
	}

	return len(t.seen)
}

func (t *tally) handled() int {
	t.mu.Lock()
	defer t.mu.Unlock()

	return len(t.seen)
}
