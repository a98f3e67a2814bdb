package codec

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// What amqp091-go reads of a message's headers. RabbitMQ takes more from publishers and hands it
// on, and amqp091-go gives up the whole connection over it: whoever can publish one such message
// would stop a consumer for as long as it lies in the queue.
//
// Upstream: headers that amqp091-go cannot read end the connection; rabbitmq/amqp091-go#397 (the
// limits), measured; amqp091-go 1.16; TestReadable, TestHostile_UnreadableHeaders,
// TestHostile_UnreadableDeadLetters; remove when amqp091-go hands such messages out, or closes
// their channel only.
const (
	maxEntries = 8192 // of a table and of an array
	maxDepth   = 32   // of tables and arrays in each other
)

// mostHeaderBytes is how large a content header may be for a ReadableConn to look at it: it keeps
// the whole of it. amqp091-go refuses those that are larger by their size alone, unless there is no
// limit.
const mostHeaderBytes = 16 << 20

// ReadableConn reads from the broker. It takes from the headers of messages what amqp091-go cannot
// read, and marks those messages: see LostHeaders. And it drops methods of channels that are
// closed: amqp091-go would close the connection over one, with all other channels. RabbitMQ's
// channels write beside what closes them, so one can follow: the cancel of a consumer whose message
// was not acknowledged in time, as RabbitMQ 4.3 sends it.
//
// Upstream: a method on a closed channel ends the connection; no issue known, measured; amqp091-go
// 1.16 (with RabbitMQ 4.3); TestReadable_ClosedChannels, TestPrefetch_ConsumerTimeout_OwnBroker;
// remove when amqp091-go drops such methods.
type ReadableConn struct {
	net.Conn

	in    *bufio.Reader
	limit atomic.Int64 // the negotiated frame size; 0 for none

	contents atomic.Int64 // content headers so far

	closed map[uint16]bool // channels

	ready []byte // of a frame that was changed, still to be given
	pass  int64  // bytes that follow as they are
}

// Readable reads from a connection whose frames have no limit yet.
func Readable(conn net.Conn) *ReadableConn {
	return &ReadableConn{Conn: conn, in: bufio.NewReaderSize(conn, 32<<10), closed: map[uint16]bool{}}
}

// LimitFrames tells the negotiated frame size, before there is anything to consume.
func (s *ReadableConn) LimitFrames(size int) { s.limit.Store(int64(size)) }

// Contents is how many messages have begun to arrive: deliveries, and publishes that came back.
func (s *ReadableConn) Contents() int64 { return s.contents.Load() }

const (
	frameStart  = 1 + 2 + 4 // type, channel, size
	frameEnds   = 1
	frameExtra  = frameStart + frameEnds
	frameType   = 2 // of a content header
	methodType  = 1
	methodStart = 2 + 2 // class, method

	channelOpenOK  = 20<<16 | 11
	channelClose   = 20<<16 | 40
	channelCloseOK = 20<<16 | 41
)

func (s *ReadableConn) Read(p []byte) (int, error) {
	for len(s.ready) == 0 && s.pass == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	if len(s.ready) > 0 {
		n := copy(p, s.ready)
		s.ready = s.ready[n:]

		return n, nil
	}

	n, err := s.in.Read(p[:min(int64(len(p)), s.pass)])
	s.pass -= int64(n)

	return n, err
}

// next looks at the frame that comes next.
func (s *ReadableConn) next() error {
	start, err := s.in.Peek(frameStart)
	if err != nil {
		return err
	}
	claimed := int64(binary.BigEndian.Uint32(start[3:]))
	switch start[0] {
	case frameType:
		if !s.closed[binary.BigEndian.Uint16(start[1:])] {
			s.contents.Add(1)
		}
	case methodType:
		if claimed < methodStart {
			break // amqp091-go refuses it
		}
		isLate, err := s.isLate(binary.BigEndian.Uint16(start[1:]))
		if err != nil {
			return err
		}
		if isLate {
			_, err = io.CopyN(io.Discard, s.in, claimed+frameExtra)
			return err
		}
	}
	if start[0] != frameType || claimed > mostHeaderBytes {
		s.pass = claimed + frameExtra
		return nil
	}

	size := int(claimed)
	whole := size + frameExtra
	if whole <= s.in.Size() { // nearly always
		frame, err := s.in.Peek(whole)
		if err != nil {
			return err
		}
		if isReadable(frame[frameStart:frameStart+size], int(s.limit.Load())) {
			s.pass = int64(whole)
			return nil
		}
	}

	var frame bytes.Buffer // grows with what comes, whatever its size says
	if _, err := io.CopyN(&frame, s.in, int64(whole)); err != nil {
		return err
	}
	payload := frame.Bytes()[frameStart : frameStart+size]
	if sifted, changed := sift(payload, int(s.limit.Load())); changed {
		header := slices.Clone(frame.Bytes()[:frameStart])
		binary.BigEndian.PutUint32(header[3:], uint32(len(sifted)))
		s.ready = slices.Concat(header, sifted, frame.Bytes()[frameStart+size:])

		return nil
	}
	s.ready = frame.Bytes()

	return nil
}

// isLate looks at a method, and tells whether its channel has been closed before.
func (s *ReadableConn) isLate(channel uint16) (bool, error) {
	start, err := s.in.Peek(frameStart + methodStart)
	if err != nil {
		return false, err
	}
	switch binary.BigEndian.Uint32(start[frameStart:]) {
	case channelOpenOK:
		delete(s.closed, channel)
	case channelClose, channelCloseOK:
		s.closed[channel] = true
	default:
		return s.closed[channel], nil
	}

	return false, nil
}

// entry is a header as it is encoded.
type entry struct {
	key      string
	raw      []byte
	readable bool
}

// room is how large the payload of a frame can be. A limit of 0 is none.
func room(limit int) int {
	if limit > 0 {
		return limit - frameExtra
	}

	return math.MaxInt
}

// isReadable tells whether amqp091-go can read a content header as it is.
func isReadable(payload []byte, limit int) bool {
	_, table, _, ok := splitContentHeader(payload)
	return !ok || len(payload) <= room(limit) && containerIsReadable(table, true, 0)
}

// sift takes from a content header what amqp091-go cannot read: first the headers that it cannot,
// then the largest until the others are few enough, and small enough for a frame of limit bytes.
// Their names are in the mark. changed is false where nothing needs to be taken.
func sift(payload []byte, limit int) (sifted []byte, changed bool) {
	if isReadable(payload, limit) {
		return payload, false
	}
	before, table, after, _ := splitContentHeader(payload)
	all := entriesOf(table)

	slices.SortStableFunc(all, func(a, b entry) int { // what is to go first comes first
		switch {
		case a.readable == b.readable:
			return len(b.raw) - len(a.raw)
		case b.readable:
			return -1
		}

		return 1
	})
	var lost []string
	size := len(payload) + mostMarkBytes
	for len(all) > 0 && (!all[0].readable || len(all) >= maxEntries || size > room(limit)) {
		size -= len(all[0].raw)
		lost = append(lost, nameOf(all[0].key))
		all = all[1:]
	}

	var headers []byte
	for _, e := range append(all, mark(lost)) {
		headers = append(headers, e.raw...)
	}
	sifted = append(slices.Clone(before), binary.BigEndian.AppendUint32(nil, uint32(len(headers)))...)

	return append(append(sifted, headers...), after...), true
}

// splitContentHeader finds the table of headers. ok is false where there is none.
func splitContentHeader(payload []byte) (before, table, after []byte, ok bool) {
	const flagsAt, listAt = 2 + 2 + 8, 2 + 2 + 8 + 2
	if len(payload) < listAt {
		return nil, nil, nil, false
	}
	flags, at := binary.BigEndian.Uint16(payload[flagsAt:]), listAt
	for _, bit := range []int{15, 14} { // content type and encoding are before it
		if flags&(1<<bit) == 0 {
			continue
		}
		if at >= len(payload) {
			return nil, nil, nil, false
		}
		at += 1 + int(payload[at])
	}
	if flags&(1<<13) == 0 || at+4 > len(payload) {
		return nil, nil, nil, false
	}
	length := int64(binary.BigEndian.Uint32(payload[at:]))
	if length > int64(len(payload)-at-4) {
		return nil, nil, nil, false
	}
	end := at + 4 + int(length)

	return payload[:at], payload[at+4 : end], payload[end:], true
}

// entriesOf lists the entries of an encoded table. What cannot be told apart is one that cannot be
// read.
func entriesOf(table []byte) []entry {
	var all []entry
	for len(table) > 0 {
		n := 1 + int(table[0])
		if n > len(table) {
			return append(all, entry{"(malformed)", table, false})
		}
		size, readable := field(table[n:], 0)
		if size < 0 {
			return append(all, entry{string(table[1:n]), table, false})
		}
		all = append(all, entry{string(table[1:n]), table[:n+size], readable})
		table = table[n+size:]
	}

	return all
}

// field gives the size of a value with its type, -1 where that cannot be told, and whether
// amqp091-go can read it.
func field(b []byte, depth int) (size int, readable bool) {
	if len(b) == 0 {
		return -1, false
	}

	switch b[0] {
	case 'V':
		size = 0
	case 't', 'b', 'B':
		size = 1
	case 's', 'u':
		size = 2
	case 'I', 'i', 'f':
		size = 4
	case 'D':
		size = 5
	case 'l', 'd', 'T':
		size = 8
	case 'S', 'x', 'A', 'F':
		if len(b) < 5 || int64(binary.BigEndian.Uint32(b[1:])) > int64(len(b)) {
			return -1, false
		}
		size = 4 + int(binary.BigEndian.Uint32(b[1:]))
	default:
		return -1, false
	}

	if size++; size > len(b) {
		return -1, false
	}
	if b[0] == 'A' || b[0] == 'F' {
		return size, containerIsReadable(b[5:size], b[0] == 'F', depth+1)
	}

	return size, true
}

func containerIsReadable(b []byte, isTable bool, depth int) bool {
	if depth > maxDepth {
		return false
	}

	for n := 0; len(b) > 0; n++ {
		if n == maxEntries {
			return false
		}
		if isTable {
			if 1+int(b[0]) > len(b) {
				return false
			}
			b = b[1+int(b[0]):]
		}
		size, readable := field(b, depth)
		if !readable {
			return false
		}
		b = b[size:]
	}

	return true
}

// markKey is known to this process only, so that no publisher can give the mark. It never goes to a
// broker.
var markKey = header.Prefix + "lost-" + rand.Text()

var mostMarkBytes = 1 + len(markKey) + 1 + 4 + wire.MaxRemovedBytes

func mark(lost []string) entry {
	names := wire.Text(strings.Join(lost, ", "), wire.MaxRemovedBytes)
	raw := append([]byte{byte(len(markKey))}, markKey...)
	raw = binary.BigEndian.AppendUint32(append(raw, 'S'), uint32(len(names)))

	return entry{key: markKey, raw: append(raw, names...)}
}

// LostHeaders takes the mark from the headers of a delivery: the names of those that a ReadableConn
// has taken from it, empty if there are none.
func LostHeaders(headers amqp091.Table) string {
	names, _ := headers[markKey].(string)
	delete(headers, markKey)

	return names
}

// ExplainLostHeaders is why a message that came without these headers is not handled.
func ExplainLostHeaders(names string) error {
	return fmt.Errorf("the message has headers that amqp091-go cannot read (more than %d, deeper than %d, or too "+
		"large for a frame): it comes without %s", maxEntries, maxDepth, names)
}
