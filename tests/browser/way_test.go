package browser

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// The whole way, from an overview to an undone replay: by mouse, by keyboard, and without
// JavaScript.
func TestTheWholeWay(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) (*tab, hand){
		"mouse":    func(t *testing.T) (*tab, hand) { b := newTab(t); return b, mouse{b} },
		"keyboard": func(t *testing.T) (*tab, hand) { b := newTab(t); return b, keyboard{b} },
		"no scripts": func(t *testing.T) (*tab, hand) {
			b := newTab(t)
			b.withoutScripts()
			return b, mouse{b}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.die("order-1", "permanent-1", "order-2", "panic-1", "order-3")
			b, by := open(t)

			b.open(w.at(""))
			b.sees("5 dead letters in 1 of 1 queue")
			by.press(w.queue + ".dlq")
			b.sees("dial tcp <n>:<n>: connection refused")
			by.press("3") // the messages of the largest group
			b.sees("Matching")
			by.press("order-2")
			b.sees("Handler calls")
			by.press(w.queue + ".dlq")
			b.sees("Causes")
			by.fill("search", "error:refused")
			by.press("Search")
			b.sees("Error has")
			by.press("Replay these 3…")
			b.sees("error refused")
			b.sees("3 of 5 messages would be replayed to " + w.queue)
			by.fill("rate", "100/s")

			w.healthy.Store(true) // somebody has repaired the cause
			by.press("Replay 3 messages to " + w.queue)
			b.sees("3 of 3 replayed")
			await.Until(t, func() bool { return w.handled.Load() == 3 }, "the messages are handled")
			w.Has(w.queue+".dlq", 2)

			by.press("Undo…")
			b.sees("The file has 3 messages that are not in the queue")
			by.press("Put back 3 messages to " + w.queue + ".dlq")
			b.sees("3 of 3 put back")
			w.Has(w.queue+".dlq", 5)
			by.press("Runs")
			b.sees("Put back")
			assert.Equal(t, "/dead-letters/runs", b.path())
			b.clean()
		})
	}
}
