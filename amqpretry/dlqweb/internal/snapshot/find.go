package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// mostResults is how many results are remembered, mostRows how many dead letters they have together
// for each of the snapshot: each takes 4 bytes for each order that was asked for.
const (
	mostResults = 12
	mostRows    = 3
)

// Result is what matches a filter.
type Result struct {
	Numbers
	Groups []*Group
	// Others is how many belong to fingerprints beyond mostGroups.
	Others int
	Ages   Ages
	// NotSearched is how many could not be compared, as the file had no room for them.
	NotSearched int

	key  string
	rows []uint32 // in the order of the queue

	mu     sync.Mutex
	sorted map[Order][]uint32
}

// Find gives what matches a filter at the time of the snapshot. key stands for the filter: what was
// found for it is remembered.
func (s *Snapshot) Find(ctx context.Context, key string, filter dlq.Filter) (*Result, error) {
	if r := s.remembered(key); r != nil {
		return r, nil
	}
	m := s.matcher(filter)
	leave, kept := s.enter()
	if m.kept = kept; kept {
		defer leave()
	}
	if m.deep {
		if !kept {
			return nil, ErrNotKept
		}
		s.searching.Lock()
		defer s.searching.Unlock()
		if r := s.remembered(key); r != nil { // who was before has asked the same
			return r, nil
		}
	}
	r := &Result{key: key, sorted: map[Order][]uint32{}}
	parts, errs := make([]part, len(s.chunks)), make([]error, len(s.chunks))
	next, all := make(chan int, len(s.chunks)), sync.WaitGroup{}
	for i := range s.chunks {
		next <- i
	}
	close(next)
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := range next {
				if errs[i] = context.Cause(ctx); errs[i] == nil {
					parts[i], errs[i] = m.chunk(i)
				}
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, p := range parts {
		r.rows = append(r.rows, p.rows...)
		r.NotSearched, r.UntimedLeftOut = r.NotSearched+p.notSearched, r.UntimedLeftOut+p.untimedLeftOut
	}
	s.count(r)
	s.remember(r)

	return r, nil
}

func (s *Snapshot) remembered(key string) *Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.results, func(r *Result) bool { return r.key == key })
	if i < 0 {
		return nil
	}
	r := s.results[i]
	s.results = append(slices.Delete(s.results, i, i+1), r)

	return r
}

func (s *Snapshot) remember(r *Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.results = append(s.results, r)
	rows := 0
	for i, r := range slices.Backward(s.results) {
		if rows += len(r.rows); rows > mostRows*s.n || len(s.results)-i > mostResults {
			s.results = slices.Delete(s.results, 0, i+1)
			return
		}
	}
}

// part is what was found in a chunk.
type part struct {
	rows                        []uint32
	notSearched, untimedLeftOut int
}

// matcher compares what kinds and error texts have in common once, and messages only where nothing
// else will do.
type matcher struct {
	s             *Snapshot
	filter        dlq.Filter
	kinds, errors []bool
	row           dlq.Filter // what is different for each
	uuids         bool
	ages          bool
	inside        inside
	deep          bool   // asks for what is in the message
	ofKind        bool   // asks for what kinds have
	ofError       bool   // asks for the error text
	kept          bool   // the file is there
	error         []byte // a part of the error text
}

func (s *Snapshot) matcher(f dlq.Filter) *matcher {
	m := &matcher{s: s, filter: f, uuids: len(f.UUIDs) > 0, ages: f.OlderThan > 0 || f.NewerThan > 0,
		ofKind:  len(f.Reasons)+len(f.Topics)+len(f.Handlers)+len(f.ErrorTypes)+len(f.Fingerprints) > 0,
		ofError: f.ErrorContains != "" || f.ErrorMatches != nil, inside: newInside(f),
		error: []byte(f.ErrorContains)}
	m.deep = m.inside.asks
	ofKind := dlq.Filter{Reasons: f.Reasons, Topics: f.Topics, Handlers: f.Handlers, ErrorTypes: f.ErrorTypes}
	ofError := dlq.Filter{ErrorContains: f.ErrorContains, ErrorMatches: f.ErrorMatches}
	m.row = dlq.Filter{OlderThan: f.OlderThan, NewerThan: f.NewerThan, MinCalls: f.MinCalls, MaxCalls: f.MaxCalls,
		MinReplays: f.MinReplays, MaxReplays: f.MaxReplays, NeverReplayed: f.NeverReplayed,
		DueWithin: f.DueWithin, DueAfter: f.DueAfter}
	for _, k := range s.texts.kinds {
		var l dlq.DeadLetter
		l.Reason, l.Topic, l.Handler, l.ErrorType = k.reason, k.topic, k.handler, k.errorType
		m.kinds = append(m.kinds, ofKind.Matches(&l, s.Began) && (len(f.Fingerprints) == 0 ||
			slices.Contains(f.Fingerprints, s.texts.fingerprints[k.fingerprint].ID)))
	}
	for _, text := range s.texts.errors {
		var l dlq.DeadLetter
		l.Error = text
		m.errors = append(m.errors, ofError.Matches(&l, s.Began))
	}

	return m
}

// chunk finds what matches in one.
func (m *matcher) chunk(n int) (p part, err error) {
	var l dlq.DeadLetter
	w := window{file: m.s.file}
	for at := range m.s.chunks[n].rows {
		r, i := &m.s.chunks[n].rows[at], n*chunkRows+at
		if r.kind != 0 && !m.kinds[r.kind] || r.error != 0 && !m.errors[r.error] {
			continue
		}
		l.LastFailure, l.Calls, l.Replays, l.Wait = r.time(), int(r.calls), int(r.replays), m.s.wait(i)
		untimed := m.ages && r.at == unknown
		if untimed {
			l.LastFailure = m.s.Began.Add(-m.anAge())
		}
		if !m.row.Matches(&l, m.s.Began) || m.filter.Parked != nil && *m.filter.Parked != r.parked ||
			m.uuids && !slices.ContainsFunc(m.filter.UUIDs, func(uuid string) bool { return m.s.isUUID(i, uuid) }) {
			continue
		}
		matches, err := m.whole(&w, r, untimed)
		switch {
		case errors.Is(err, ErrNotKept):
			p.notSearched++
		case err != nil:
			return p, err
		case matches && untimed:
			p.untimedLeftOut++
		case matches:
			p.rows = append(p.rows, uint32(i)) //nolint:gosec // a queue has fewer
		}
	}

	return p, nil
}

// anAge is one that the filter lets pass.
func (m *matcher) anAge() time.Duration {
	if m.row.NewerThan > 0 {
		return (m.row.OlderThan + m.row.NewerThan) / 2
	}

	return m.row.OlderThan + time.Second
}

// whole compares what is not in the index.
func (m *matcher) whole(w *window, r *row, untimed bool) (bool, error) {
	known := (r.kind != 0 || !m.ofKind) && (r.error != 0 || !m.ofError)
	if known && !m.deep {
		return true, nil
	}
	if !m.kept {
		return false, ErrNotKept
	}
	record, err := w.record(r, windowSize)
	if err != nil || !bytes.Contains(record, m.error) {
		return false, err
	}
	if known {
		return m.inside.matches(record, m.s.Began)
	}
	l, err := decode(record)
	if err != nil {
		return false, err
	}
	filter := m.filter
	if filter.UUIDs = nil; untimed {
		filter.OlderThan, filter.NewerThan = 0, 0
	}

	return filter.Matches(l, m.s.Began), nil
}

// Order is how a list is sorted.
type Order string

// The orders of a list.
const (
	Oldest  Order = ""        // that of the queue
	Newest  Order = "newest"  // the last failure first; those without a time at the end
	Largest Order = "largest" // bodies
	Most    Order = "replays" // replays
	Soonest Order = "due"     // of messages that wait, the one that is due first
)

// Orders are those of dead letters.
func Orders() []Order { return []Order{Oldest, Newest, Largest, Most} }

// Page gives some of a result, in an order.
func (s *Snapshot) Page(r *Result, order Order, from, size int) []Summary {
	rows := s.inOrder(r, order)
	from = min(from, len(rows))
	page := make([]Summary, 0, min(size, len(rows)-from))
	for _, i := range rows[from:min(from+size, len(rows))] {
		page = append(page, s.Summary(int(i)+1))
	}

	return page
}

func (s *Snapshot) inOrder(r *Result, order Order) []uint32 {
	if order == Oldest {
		return r.rows
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if rows := r.sorted[order]; rows != nil {
		return rows
	}
	value := func(i uint32) int64 {
		switch r := s.row(int(i)); order {
		case Largest:
			return int64(r.size)
		case Most:
			return int64(r.replays)
		case Soonest:
			return -s.chunks[i/chunkRows].dues[i%chunkRows]
		default:
			return r.at
		}
	}
	rows := slices.Clone(r.rows)
	slices.SortStableFunc(rows, func(a, b uint32) int { return cmp.Compare(value(b), value(a)) })
	r.sorted[order] = rows

	return rows
}

// Around gives the positions before and behind one in an order; 0 where there is none.
func (s *Snapshot) Around(r *Result, order Order, position int) (before, behind int) {
	rows := s.inOrder(r, order)
	i := slices.Index(rows, uint32(position-1)) //nolint:gosec // a position of this snapshot
	if order == Oldest {
		i, _ = slices.BinarySearch(rows, uint32(position-1)) //nolint:gosec // the same
	}
	if i < 0 || i >= len(rows) || int(rows[i]) != position-1 {
		return 0, 0
	}
	if i > 0 {
		before = int(rows[i-1]) + 1
	}
	if i+1 < len(rows) {
		behind = int(rows[i+1]) + 1
	}

	return before, behind
}

// After is where in a result the dead letters behind a position begin.
func (r *Result) After(position int) int {
	i, found := slices.BinarySearch(r.rows, uint32(max(0, position-1))) //nolint:gosec // at least 0
	if found && position > 0 {
		i++
	}

	return i
}

// All gives the whole dead letters of a result, the oldest first.
func (s *Snapshot) All(r *Result) func(yield func(*dlq.DeadLetter, error) bool) {
	return func(yield func(*dlq.DeadLetter, error) bool) {
		leave, ok := s.enter()
		if !ok {
			yield(nil, ErrNotKept)
			return
		}
		defer leave()
		for _, i := range r.rows {
			if !yield(s.load(s.row(int(i)))) {
				return
			}
		}
	}
}

// Replayed counts the dead letters that the run with this id has replayed last: they have failed
// again.
func (s *Snapshot) Replayed(run string) (n int) {
	wanted := slices.Index(s.texts.runs, run)
	if wanted <= 0 {
		return 0
	}
	for i := range s.n {
		if s.row(i).run == uint32(wanted) { //nolint:gosec // an index
			n++
		}
	}

	return n
}
