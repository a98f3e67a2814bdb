// Package snapshot remembers what one read of a dead-letter queue has seen: an index in memory, and
// the whole messages in a temporary file. All that is asked of it afterwards needs no broker.
package snapshot

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

// Snapshot is what one read has seen. After End it never changes, and is safe for concurrent use.
type Snapshot struct {
	// Began and Ended are when the queue was read. Ages count from Began.
	Began, Ended time.Time
	// Read is what dlq.Read has said when it began; Bytes those of all bodies.
	Read  dlq.Stat
	Bytes int64
	// Whole is how many of the messages are whole in the file.
	Whole int

	chunks []*chunk
	n      int
	texts  texts
	file   *file
	record []byte // of the message that is added

	searching sync.Mutex // one search through the file at a time
	mu        sync.Mutex
	results   []*Result // the one that was used last is the last
	users     int       // of the file
	released  bool
}

const chunkRows = 4096

// chunk has some rows, the UUIDs of these, and of messages that wait the ends in milliseconds.
type chunk struct {
	rows  []row
	uuids []byte
	dues  []int64
}

// row is one dead letter in the index: 56 bytes, and its UUID.
type row struct {
	at              int64  // last failure in milliseconds; unknown if it does not tell
	offset          int64  // of the whole message in the file; -1 if it is not there
	length          uint32 // of that
	size            uint32 // of the body
	kind, error     uint32 // indices of texts
	run             uint32 // index of the last replay's id
	parking         uint32 // index of who has parked it, and why
	calls, replays  uint32
	uuid            uint32 // where the UUID ends in chunk.uuids
	cut, unreadable bool   // the UUID is cut; headers cannot be read
	parked          bool
}

const unknown = math.MinInt64

// mostText is how many bytes of a text a list shows.
const mostText = 300

// New makes an empty snapshot of a read that begins now.
func New(files *Files) (*Snapshot, error) {
	s := &Snapshot{Began: time.Now(), texts: newTexts(), users: 1}
	var err error
	s.file, err = files.create()

	return s, err
}

// Len is how many dead letters it has.
func (s *Snapshot) Len() int { return s.n }

// Add adds the next dead letter. It keeps nothing of it.
func (s *Snapshot) Add(l *dlq.DeadLetter) {
	if s.n%chunkRows == 0 {
		s.chunks = append(s.chunks, &chunk{rows: make([]row, 0, chunkRows)})
	}
	c := s.chunks[len(s.chunks)-1]
	r := rowOf(l)
	r.kind, r.error = s.texts.add(l)
	if run, _ := l.Message.Headers[header.Replay].(string); run != "" {
		r.run = keep(&s.texts, s.texts.byRun, &s.texts.runs, run, run, len(run))
	}
	if p := l.Parking(); p != nil && !p.Unparked {
		r.parking = keep(&s.texts, s.texts.byParking, &s.texts.parkings, *p, *p, len(p.By)+len(p.Note))
	}
	c.uuids = append(c.uuids, cut(l.UUID, mostText)...)
	r.uuid = uint32(len(c.uuids)) //nolint:gosec // chunkRows times mostText

	record, err := encode(s.record[:0], l)
	if s.record = record; err == nil && len(record) <= math.MaxUint32 {
		if offset, ok := s.file.add(record); ok {
			r.offset, r.length = offset, uint32(len(record))
			s.Whole++
		}
	}
	c.rows = append(c.rows, r)
	if l.Wait != nil {
		c.dues = append(c.dues, l.Wait.End().UnixMilli())
	}
	s.n++
	s.Bytes += int64(len(l.Message.Body))
}

// rowOf has what needs no texts.
func rowOf(l *dlq.DeadLetter) row {
	r := row{at: unknown, offset: -1, size: clamp(len(l.Message.Body)), calls: clamp(l.Calls),
		replays: clamp(l.Replays), cut: len(l.UUID) > mostText, unreadable: l.Unreadable != "",
		parked: l.IsParked()}
	if !l.LastFailure.IsZero() {
		r.at = l.LastFailure.UnixMilli()
	}

	return r
}

// Is tells whether a dead letter is the one at a position, as far as the index tells. One without a
// UUID must still be there.
func (s *Snapshot) Is(position int, l *dlq.DeadLetter) bool {
	a, b := rowOf(l), s.row(position-1)

	return (l.UUID != "" || l.Position == position) && cut(l.UUID, mostText) == s.uuid(position-1) &&
		a.at == b.at && a.size == b.size && a.calls == b.calls && a.replays == b.replays
}

func clamp(n int) uint32 { return uint32(max(0, min(n, math.MaxUint32))) } //nolint:gosec // within the bounds

// End ends the adding. The error says that no more messages could be written to the file.
func (s *Snapshot) End() error {
	s.texts.end()
	s.record, s.Ended = nil, time.Now()
	if s.file == nil {
		return nil
	}
	err := s.file.end()
	for i := range s.n {
		if r := s.row(i); err != nil && r.offset >= 0 && r.offset+int64(r.length) > s.file.size {
			r.offset = -1
			s.Whole--
		}
	}

	return err
}

// Everything is the result of no filter.
func (s *Snapshot) Everything() *Result {
	r, _ := s.Find(context.Background(), "", dlq.Filter{}) // which reads no file
	return r
}

// Fingerprint is that with an ID; false if no dead letter has it.
func (s *Snapshot) Fingerprint(id string) (dlq.Fingerprint, bool) {
	i := slices.IndexFunc(s.texts.fingerprints, func(f dlq.Fingerprint) bool { return f.ID == id })
	if i <= 0 {
		return dlq.Fingerprint{}, false
	}

	return s.texts.fingerprints[i], true
}

// Release gives up the file, as soon as nobody reads it.
func (s *Snapshot) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.released {
		s.released = true
		s.leave()
	}
}

// enter keeps the file while it is read.
func (s *Snapshot) enter() (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released || s.file == nil {
		return nil, false
	}
	s.users++

	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leave()
	}, true
}

func (s *Snapshot) leave() {
	if s.users--; s.users == 0 {
		s.file.close()
	}
}

// ErrNotKept is what Load returns for a message that there was no room for.
var ErrNotKept = errors.New("the snapshot had no room for the whole message")

// Load reads a whole dead letter by its position, which is 1 for the oldest.
func (s *Snapshot) Load(position int) (*dlq.DeadLetter, error) {
	leave, ok := s.enter()
	if !ok {
		return nil, ErrNotKept
	}
	defer leave()

	return s.load(s.row(position - 1))
}

// load needs enter.
func (s *Snapshot) load(r *row) (*dlq.DeadLetter, error) {
	w := window{file: s.file}
	record, err := w.record(r, 0)
	if err != nil {
		return nil, err
	}

	return decode(record)
}

func (s *Snapshot) row(i int) *row { return &s.chunks[i/chunkRows].rows[i%chunkRows] }

// uuid of a row, cut.
func (s *Snapshot) uuid(i int) string {
	c, at, begin := s.chunks[i/chunkRows], i%chunkRows, uint32(0)
	if at > 0 {
		begin = c.rows[at-1].uuid
	}

	return string(c.uuids[begin:c.rows[at].uuid])
}

// Position is that of the first dead letter with a UUID; 0 if there is none.
func (s *Snapshot) Position(uuid string) int {
	for i := range s.n {
		if s.isUUID(i, uuid) {
			return i + 1
		}
	}

	return 0
}

func (s *Snapshot) isUUID(i int, uuid string) bool {
	if !s.row(i).cut {
		return s.uuid(i) == uuid
	}
	if len(uuid) <= mostText || s.uuid(i) != cut(uuid, mostText) {
		return false
	}
	l, err := s.Load(i + 1)

	return err == nil && l.UUID == uuid
}

// Summary is a dead letter in a list.
type Summary struct {
	Position    int          `json:"position"`
	UUID        string       `json:"uuid"`
	Reason      retry.Reason `json:"reason"`
	Fingerprint string       `json:"fingerprint"`
	ErrorType   string       `json:"error_type"`
	Error       string       `json:"error,omitempty"`
	Handler     string       `json:"handler"`
	Topic       string       `json:"topic"`
	Calls       int          `json:"calls"`
	Replays     int          `json:"replays"`
	LastFailure time.Time    `json:"last_failure,omitzero"`
	Bytes       int          `json:"bytes"`
	Unreadable  string       `json:"unreadable,omitempty"`
	Parked      bool         `json:"parked,omitempty"`
	// Wait is set of a message that waits.
	Wait *dlq.Wait `json:"wait,omitempty"`
	// Cut tells that the UUID is longer, so that only the position leads to the message.
	Cut bool `json:"-"`
}

// Summary of the dead letter at a position.
func (s *Snapshot) Summary(position int) Summary {
	r := s.row(position - 1)
	k := s.texts.kinds[r.kind]
	u := Summary{Position: position, UUID: s.uuid(position - 1), Cut: r.cut, Reason: k.reason, ErrorType: k.errorType,
		Error: s.texts.errors[r.error], Handler: k.handler, Topic: k.topic,
		Fingerprint: s.texts.fingerprints[k.fingerprint].ID, Calls: int(r.calls), Replays: int(r.replays),
		LastFailure: r.time(), Bytes: int(r.size), Parked: r.parked}
	if u.Wait = s.wait(position - 1); u.Wait != nil || r.kind == 0 || r.error == 0 || r.unreadable {
		if l, err := s.Load(position); err == nil {
			u.Wait = l.Wait
			u.Reason, u.ErrorType, u.Error, u.Handler, u.Topic = l.Reason, l.ErrorType, l.Error, l.Handler, l.Topic
			u.Fingerprint, u.Unreadable = l.Fingerprint().ID, cut(l.Unreadable, mostText)
		}
	}
	for _, text := range []*string{&u.ErrorType, &u.Error, &u.Handler, &u.Topic} {
		*text = cut(*text, mostText)
	}

	return u
}

// wait is what the index has of the wait of a row; nil of a dead letter.
func (s *Snapshot) wait(i int) *dlq.Wait {
	dues := s.chunks[i/chunkRows].dues
	if dues == nil {
		return nil
	}

	return &dlq.Wait{Due: time.UnixMilli(dues[i%chunkRows]).UTC()}
}

func (r *row) time() time.Time {
	if r.at == unknown {
		return time.Time{}
	}

	return time.UnixMilli(r.at).UTC()
}

// cut shortens a text to so many bytes, at a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	most -= len("…")
	for most > 0 && text[most]&0xc0 == 0x80 {
		most--
	}

	return text[:most] + "…"
}
