package fakebroker

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// Scripted is as much of a broker as a forwarder asks for. A test decides what it answers, and
// when: what RabbitMQ does by itself is not under test here.
type Scripted struct {
	// OnPublish answers a publish; nil confirms it. OnDeclare and OnBind are called before a queue
	// is declared or bound, in a goroutine of their own: the answer waits until they return.
	OnPublish         func(*Publish)
	OnDeclare, OnBind func(queue string)

	mu        sync.Mutex
	publishes []*Publish
	declares  map[string]int
	binds     map[string]int
	open      map[uint16]*openChannel
	confirms  int // channels with confirms so far
}

type openChannel struct {
	peer    *Peer
	tag     uint64      // of the last publish
	current *Publish    // whose frames are arriving
	refused atomic.Bool // it is closed by the broker, which answers nothing more on it
}

// Publish is one that the broker has received.
type Publish struct {
	At       time.Time
	Exchange string

	key     string
	peer    *Peer
	channel uint16
	on      *openChannel
	tag     uint64
	frames  []byte // header and body
	left    int    // bytes of the body that are missing
}

// NewScripted returns a broker that answers publishes so; nil confirms them at once.
func NewScripted(onPublish func(*Publish)) *Scripted {
	return &Scripted{OnPublish: onPublish, declares: map[string]int{}, binds: map[string]int{},
		open: map[uint16]*openChannel{}}
}

func locked[T any](b *Scripted, get func() T) T {
	b.mu.Lock()
	defer b.mu.Unlock()

	return get()
}

// Publishes are those received so far.
func (b *Scripted) Publishes() []*Publish {
	return locked(b, func() []*Publish { return slices.Clone(b.publishes) })
}

// Declares is how often a queue was declared.
func (b *Scripted) Declares(queue string) int {
	return locked(b, func() int { return b.declares[queue] })
}

// Binds is how often a queue was bound.
func (b *Scripted) Binds(queue string) int { return locked(b, func() int { return b.binds[queue] }) }

// Open is how many channels are open.
func (b *Scripted) Open() int { return locked(b, func() int { return len(b.open) }) }

// Confirms is how many channels were opened for copies so far.
func (b *Scripted) Confirms() int { return locked(b, func() int { return b.confirms }) }

// Dial connects to it.
func (b *Scripted) Dial(string, string) (net.Conn, error) {
	client, broker := net.Pipe()
	go b.serve(newServerPeer(newSocket(broker)))

	return client, nil
}

func (b *Scripted) serve(p *Peer) {
	defer func() { _ = p.broker.Close() }()
	p.each(func(frame []byte) {
		channel := binary.BigEndian.Uint16(frame[1:])
		switch frame[0] {
		case 1:
			b.method(p, channel, frame[startBytes:len(frame)-endBytes])
		case 2, 3:
			b.content(channel, frame)
		}
	})
}

func (b *Scripted) method(p *Peer, channel uint16, payload []byte) {
	method, arguments := binary.BigEndian.Uint32(payload), payload[4:]
	switch method {
	case 10<<16 | 50: // close the connection
		p.Method(0, 10, 51, "")
	case 20<<16 | 10: // open a channel
		b.mu.Lock()
		b.open[channel] = &openChannel{peer: p}
		b.mu.Unlock()
		p.Method(channel, 20, 11, "\x00\x00\x00\x00")
	case 20<<16 | 40: // close it
		b.mu.Lock()
		delete(b.open, channel)
		b.mu.Unlock()
		p.Method(channel, 20, 41, "")
	case 20<<16 | 41: // confirm that the broker has closed it
		b.mu.Lock()
		delete(b.open, channel)
		b.mu.Unlock()
	case 40<<16 | 10: // declare an exchange
		p.Method(channel, 40, 11, "")
	case 40<<16 | 30: // bind an exchange
		p.Method(channel, 40, 31, "")
	case 50<<16 | 10: // declare a queue
		queue := shortString(arguments[2:])
		b.count(b.declares, queue, b.OnDeclare, func() {
			p.Method(channel, 50, 11, string([]byte{byte(len(queue))})+queue+"\x00\x00\x00\x00\x00\x00\x00\x00")
		})
	case 50<<16 | 20: // bind a queue
		queue := shortString(arguments[2:])
		b.count(b.binds, queue, b.OnBind, func() { p.Method(channel, 50, 21, "") })
	case 60<<16 | 40: // publish
		b.mu.Lock()
		c := b.open[channel]
		c.tag++
		exchange := shortString(arguments[2:])
		c.current = &Publish{At: time.Now(), Exchange: exchange, key: shortString(arguments[3+len(exchange):]), peer: p,
			channel: channel, on: c, tag: c.tag}
		b.mu.Unlock()
	case 85<<16 | 10: // confirms
		b.mu.Lock()
		b.confirms++
		b.mu.Unlock()
		p.Method(channel, 85, 11, "")
	default:
		p.answer(method)
	}
}

func shortString(b []byte) string { return string(b[1 : 1+b[0]]) }

func (b *Scripted) count(counts map[string]int, queue string, before func(string), answer func()) {
	b.mu.Lock()
	counts[queue]++
	b.mu.Unlock()

	go func() {
		if before != nil {
			before(queue)
		}
		answer()
	}()
}

// content takes a frame of a publish's header or body.
func (b *Scripted) content(channel uint16, frame []byte) {
	b.mu.Lock()
	c := b.open[channel]
	u := c.current
	u.frames = append(u.frames, frame...)
	if frame[0] == 2 {
		u.left = int(binary.BigEndian.Uint64(frame[startBytes+4:]))
	} else {
		u.left -= len(frame) - extraBytes
	}
	complete := u.left == 0 && !c.refused.Load()
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

// Ack confirms the publish.
func (u *Publish) Ack() { u.write(nil, 80, "\x00") }

// Nack refuses it.
func (u *Publish) Nack() { u.write(nil, 120, "\x00") }

// Return gives it back before it confirms it, as RabbitMQ does.
func (u *Publish) Return() {
	var e Encoder
	e.Number(uint16(60), uint16(50), uint16(amqp091.NoRoute))
	e.Short("NO_ROUTE")
	e.Short(u.Exchange)
	e.Short(u.key)
	u.write(append(Frame(1, u.channel, e.Bytes()), u.frames...), 80, "\x00")
}

// Refuse closes the channel over it, with all publishes on it that are not confirmed.
func (u *Publish) Refuse(code uint16, text string) {
	u.on.refused.Store(true)
	var e Encoder
	e.Number(code)
	e.Short(text)
	e.Number(uint16(60), uint16(40))
	u.peer.Method(u.channel, 20, 40, e.String())
}

func (u *Publish) write(before []byte, method uint16, bits string) {
	if u.on.refused.Load() {
		return
	}
	var e Encoder
	e.Number(uint16(60), method, u.tag)
	e.WriteString(bits)
	_, _ = u.peer.broker.Write(append(before, Frame(1, u.channel, e.Bytes())...))
}

// Carries tells whether a text is in its header or body.
func (u *Publish) Carries(text string) bool { return bytes.Contains(u.frames, []byte(text)) }
