package transport

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// scripted is as much of a broker as a forwarder asks for. A test decides what it answers, and when: what RabbitMQ does by itself
// is not under test here.
type scripted struct {
	// OnPublish answers a publish; nil confirms it. OnDeclare and OnBind are called before a queue is declared or bound, in a
	// goroutine of their own: the answer waits until they return.
	OnPublish         func(*publish)
	OnDeclare, OnBind func(queue string)

	mu        sync.Mutex
	publishes []*publish
	declares  map[string]int
	binds     map[string]int
	open      map[uint16]*openChannel
	confirms  int // channels with confirms so far
	emitted   []retry.Event
}

type openChannel struct {
	peer    *peer
	tag     uint64   // of the last publish
	current *publish // whose frames are arriving
}

// publish is one that the broker has received.
type publish struct {
	At       time.Time
	Exchange string

	peer    *peer
	channel uint16
	tag     uint64
	frames  []byte // header and body
	left    int    // bytes of the body that are missing
}

func newScripted() *scripted {
	return &scripted{declares: map[string]int{}, binds: map[string]int{}, open: map[uint16]*openChannel{}}
}

// Publishes are those received so far.
func (b *scripted) Publishes() []*publish {
	b.mu.Lock()
	defer b.mu.Unlock()

	return slices.Clone(b.publishes)
}

// Declares is how often a queue was declared.
func (b *scripted) Declares(queue string) int {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.declares[queue]
}

// Binds is how often a queue was bound.
func (b *scripted) Binds(queue string) int {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.binds[queue]
}

// Open is how many channels are open.
func (b *scripted) Open() int {
	b.mu.Lock()
	defer b.mu.Unlock()

	return len(b.open)
}

// Confirms is how many channels were opened for copies so far.
func (b *scripted) Confirms() int {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.confirms
}

// Events are what was emitted of a kind.
func (b *scripted) Events(kind retry.EventKind) []retry.Event {
	b.mu.Lock()
	defer b.mu.Unlock()

	return slices.DeleteFunc(slices.Clone(b.emitted), func(e retry.Event) bool { return e.Kind != kind })
}

// forwarder returns a forwarder that publishes to the broker until the test ends.
func (b *scripted) forwarder(t *testing.T) *Forwarder {
	t.Helper()
	f := NewForwarder(ForwarderSettings{
		Connection: ConnectionSettings{
			URI: "amqp://guest:guest@broker/", AMQP: &amqp091.Config{Dial: b.dial}, Emit: func(e retry.Event) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.emitted = append(b.emitted, e)
			},
		},
		Logger: watermill.NopLogger{}, HoldWarning: 30 * time.Second, Redeclare: true,
	})
	t.Cleanup(func() { f.Close(time.Now().Add(time.Second)) })

	return f
}

func (b *scripted) dial(string, string) (net.Conn, error) {
	client, broker := net.Pipe()
	go b.serve(&peer{broker: broker})

	return client, nil
}

func (b *scripted) serve(p *peer) {
	defer func() { _ = p.broker.Close() }()
	if _, err := io.ReadFull(p.broker, make([]byte, 8)); err != nil {
		return
	}
	p.method(0, 10, 10, "\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05PLAIN\x00\x00\x00\x05en_US")
	for {
		frame, err := readFrame(p.broker)
		if err != nil {
			return
		}
		channel := binary.BigEndian.Uint16(frame[1:])
		switch frame[0] {
		case 1:
			b.method(p, channel, frame[frameStart:len(frame)-frameEnds])
		case 2, 3:
			b.content(channel, frame)
		case 8: // heartbeat
			p.write(8, 0, nil)
		}
	}
}

func (b *scripted) method(p *peer, channel uint16, payload []byte) {
	method, arguments := binary.BigEndian.Uint32(payload), payload[4:]
	switch method {
	case 10<<16 | 50: // close the connection
		p.method(0, 10, 51, "")
	case 20<<16 | 10: // open a channel
		b.mu.Lock()
		b.open[channel] = &openChannel{peer: p}
		b.mu.Unlock()
		p.method(channel, 20, 11, "\x00\x00\x00\x00")
	case 20<<16 | 40: // close it
		b.mu.Lock()
		delete(b.open, channel)
		b.mu.Unlock()
		p.method(channel, 20, 41, "")
	case 40<<16 | 10: // declare an exchange
		p.method(channel, 40, 11, "")
	case 50<<16 | 10: // declare a queue
		b.declare(p, channel, shortString(arguments[2:]))
	case 50<<16 | 20: // bind
		b.bind(p, channel, shortString(arguments[2:]))
	case 60<<16 | 40: // publish
		b.mu.Lock()
		c := b.open[channel]
		c.tag++
		c.current = &publish{At: time.Now(), Exchange: shortString(arguments[2:]), peer: p, channel: channel, tag: c.tag}
		b.mu.Unlock()
	case 85<<16 | 10: // confirms
		b.mu.Lock()
		b.confirms++
		b.mu.Unlock()
		p.method(channel, 85, 11, "")
	default:
		p.answer(method)
	}
}

func shortString(b []byte) string { return string(b[1 : 1+b[0]]) }

func (b *scripted) declare(p *peer, channel uint16, queue string) {
	b.mu.Lock()
	b.declares[queue]++
	b.mu.Unlock()

	go func() {
		if b.OnDeclare != nil {
			b.OnDeclare(queue)
		}
		p.method(channel, 50, 11, string([]byte{byte(len(queue))})+queue+"\x00\x00\x00\x00\x00\x00\x00\x00")
	}()
}

func (b *scripted) bind(p *peer, channel uint16, queue string) {
	b.mu.Lock()
	b.binds[queue]++
	b.mu.Unlock()

	go func() {
		if b.OnBind != nil {
			b.OnBind(queue)
		}
		p.method(channel, 50, 21, "")
	}()
}

// content takes a frame of a publish's header or body.
func (b *scripted) content(channel uint16, frame []byte) {
	b.mu.Lock()
	c := b.open[channel]
	u := c.current
	u.frames = append(u.frames, frame...)
	if frame[0] == 2 {
		u.left = int(binary.BigEndian.Uint64(frame[frameStart+4:]))
	} else {
		u.left -= len(frame) - frameExtra
	}
	complete := u.left == 0
	if complete {
		b.publishes = append(b.publishes, u)
	}
	b.mu.Unlock()

	switch {
	case !complete:
	case b.OnPublish == nil:
		u.Ack()
	default:
		b.OnPublish(u)
	}
}

// Ack confirms the publish, Nack refuses it, and Return gives it back before it confirms it, as RabbitMQ does.
func (u *publish) Ack()  { u.write(nil, 80, "\x00") }
func (u *publish) Nack() { u.write(nil, 120, "\x00") }
func (u *publish) Return() {
	var e encoder
	e.number(uint16(60), uint16(50), uint16(amqp091.NoRoute))
	e.WriteString("\x08NO_ROUTE\x00\x00")
	u.write(append(frameOf(1, u.channel, e.Bytes()), u.frames...), 80, "\x00")
}

func (u *publish) write(before []byte, method uint16, bits string) {
	var e encoder
	e.number(uint16(60), method, u.tag)
	e.WriteString(bits)
	_, _ = u.peer.broker.Write(append(before, frameOf(1, u.channel, e.Bytes())...))
}

// pass lets time pass, in a bubble of synctest.
func pass(d time.Duration) { <-time.After(d) }

// scriptedPlan is that of a queue "q" with one retry.
func scriptedPlan(t *testing.T, policy config.Policy) topology.Plan {
	t.Helper()
	plan, err := topology.New("q", policy, topology.Names{})
	require.NoError(t, err)

	return plan
}

// failure is a delivery that has failed once and waits for a second.
func failure() *Order {
	d := delivered(nil)
	return &Order{
		Delivery: &d, State: wire.State{Queue: "q", Count: 1, Delay: "1s"}, IsGone: func() bool { return false },
	}
}
