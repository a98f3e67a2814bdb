package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

var (
	someReasons  = []retry.Reason{"", retry.ReasonExhausted, retry.ReasonPermanent, "forged"}
	someTopics   = []string{"", "orders", "mails"}
	someHandlers = []string{"", "charge", "ship"}
	someTypes    = []string{"", "*url.Error", "*cards.DeclinedError"}
	someErrors   = []string{"", "card 1 declined", "card 27 declined", "timeout",
		"no \xff TEXT", "\u212aelvin \u0130", "é\xc3Straße", strings.Repeat("long ", 90)}
	longUUID  = strings.Repeat("é", mostText)
	someUUIDs = []string{"", "a", "b", "c", strings.Repeat("x", mostText),
		longUUID + "1", longUUID + "2", cut(longUUID, mostText)}
	someHeaders = []any{nil, "acme", int64(7), []byte("acme"), amqp091.Table{"id": int64(7)}, 1.5, true,
		amqp091.Decimal{Scale: 1, Value: 75},
		time.Date(2077, 1, 2, 3, 4, 5, 0, time.UTC), []byte{0xff, 0xfe}, []any{"Acme"}}
	someParkings = []string{"", `{"at":"2026-11-29T08:00:00Z","by":"ada","note":"legal"}`,
		`{"at":"2026-11-29T09:00:00Z","unparked":true}`, "not JSON"}
	someBodies = []string{"", "text with Acme", `{"n":1,"items":[{"id":7}]}`, `{"n":2}`}
	someAges   = []time.Duration{0, time.Minute, 10 * time.Minute, time.Hour, 30 * time.Hour, 40 * 24 * time.Hour}
)

// someDeadLetter is one whose values others have as well.
func someDeadLetter(began time.Time) *rapid.Generator[*dlq.DeadLetter] {
	return rapid.Custom(func(t *rapid.T) *dlq.DeadLetter {
		l := &dlq.DeadLetter{UUID: rapid.SampledFrom(someUUIDs).Draw(t, "uuid"), DeadLetter: retry.DeadLetter{
			Reason: oneOf(t, someReasons...), Topic: oneOf(t, someTopics...), Handler: oneOf(t, someHandlers...),
			ErrorType: oneOf(t, someTypes...),
			Error:     rapid.SampledFrom(someErrors).Draw(t, "error"),
			Calls:     rapid.IntRange(0, 4).Draw(t, "calls"), Replays: rapid.IntRange(0, 3).Draw(t, "replays")}}
		if age := rapid.SampledFrom(someAges).Draw(t, "age"); age > 0 {
			around := rapid.Int64Range(-2, 2).Draw(t, "around")
			l.LastFailure = time.UnixMilli(began.Add(-age).UnixMilli() - around).UTC()
		}
		if rapid.IntRange(0, 9).Draw(t, "readable") == 0 {
			l.Unreadable = "x-odd"
		}
		l.Message.Headers = amqp091.Table{"tenant": rapid.SampledFrom(someHeaders).Draw(t, "tenant")}
		if run := rapid.SampledFrom([]string{"", "run-1", "run-2"}).Draw(t, "run"); run != "" {
			l.Message.Headers[header.Replay] = run
		}
		if text := rapid.SampledFrom(someParkings).Draw(t, "parking"); text != "" {
			l.Message.Headers[header.Parked] = text
		}
		l.Message.Body = []byte(rapid.SampledFrom(someBodies).Draw(t, "body"))

		return l
	})
}

func someOf[T any](t *rapid.T, all []T) []T {
	return rapid.SliceOfN(rapid.SampledFrom(all), 1, 3).Draw(t, "values")
}

func oneOf[T any](t *rapid.T, values ...T) T { return rapid.SampledFrom(values).Draw(t, "value") }

// someFilter asks for a few things at a time: more would find nothing.
func someFilter(t *rapid.T, all []*dlq.DeadLetter) (f dlq.Filter) {
	settings := []func(){
		func() { f.Reasons = someOf(t, someReasons) }, func() { f.Topics = someOf(t, someTopics) },
		func() { f.Handlers = someOf(t, someHandlers) }, func() { f.ErrorTypes = someOf(t, someTypes) },
		func() { f.UUIDs = someOf(t, someUUIDs) },
		func() { f.ErrorContains = oneOf(t, "card", "long", "nobody", "\xff") },
		func() { f.ErrorMatches = regexp.MustCompile(oneOf(t, `^card \d\b`, `^$`)) },
		func() {
			f.Text = oneOf(t, "acme", "ACME", "7", "declined", "run-1", "nobody", "1.5", "TRUE",
				"2077-01", "//4", `"id":7`,
				"kelvin", "i", "É", "STRASSE", "straße", "text")
		},
		func() { f.MinCalls = oneOf(t, 1, 3) }, func() { f.MaxCalls = oneOf(t, 1, 3) },
		func() { f.MinReplays = oneOf(t, 1, 2) }, func() { f.MaxReplays = oneOf(t, 1, 2) },
		func() { f.NeverReplayed = true },
		func() { parked := oneOf(t, true, false); f.Parked = &parked },
		func() { f.OlderThan = oneOf(t, someAges[1:]...) }, func() { f.NewerThan = oneOf(t, someAges[1:]...) },
		func() { f.Headers = map[string]string{"tenant": oneOf(t, "acme", "7", "")} },
		func() {
			f.Fields = []dlq.Field{oneOf(t, dlq.Field{Path: "n", Value: "1"},
				dlq.Field{Path: "items.#.id", Value: "7"})}
		},
		func() { f.Where = func(l *dlq.DeadLetter) bool { return l.Calls%2 == 0 && len(l.Message.Body) > 0 } },
		func() {
			f.Fingerprints = []string{"000000000000"}
			if len(all) > 0 {
				f.Fingerprints = append(f.Fingerprints, rapid.SampledFrom(all).Draw(t, "of").Fingerprint().ID)
			}
		},
	}
	for range rapid.IntRange(0, 3).Draw(t, "settings") {
		settings[rapid.IntRange(0, len(settings)-1).Draw(t, "setting")]()
	}
	if f.NewerThan > 0 && f.OlderThan >= f.NewerThan {
		f.OlderThan = 0
	}

	return f
}

// made is a snapshot of some dead letters, in a folder of its own.
func made(t require.TestingT, files *Files, mostTexts int, all []*dlq.DeadLetter) *Snapshot {
	s, err := New(files)
	require.NoError(t, err)
	s.texts.most = mostTexts
	for i, l := range all {
		l.Position = i + 1
		s.Add(l)
	}
	require.NoError(t, s.End())

	return s
}

// plainly is what matches a filter, by a loop: those that an age leaves out for want of a time as
// well.
func plainly(s *Snapshot, f dlq.Filter, all []*dlq.DeadLetter) (rows []uint32, untimed int) {
	ageless := f
	ageless.OlderThan, ageless.NewerThan = 0, 0
	possible := f.NewerThan == 0 || f.OlderThan < f.NewerThan
	for i, l := range all {
		switch {
		case f.Matches(l, s.Began):
			rows = append(rows, uint32(i))
		case l.LastFailure.IsZero() && possible && ageless.Matches(l, s.Began):
			untimed++
		}
	}

	return rows, untimed
}

// What a snapshot finds is what a loop over all dead letters finds, as far as it has room for them:
// and what it has no room for is told.
func TestFind(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		began := time.Now()
		all := rapid.SliceOfN(someDeadLetter(began), 0, 60).Draw(t, "dead letters")
		files := &Files{Folder: folder, Most: rapid.SampledFrom([]int64{1 << 30, 1 << 30, 3000, 0}).Draw(t, "room")}
		s := made(t, files, rapid.SampledFrom([]int{mostTexts, 0, 500, 2000}).Draw(t, "texts"), all)
		s.Began = began
		defer s.Release()
		require.Equal(t, len(all), s.Len())
		require.Equal(t, len(all), s.Everything().Matched)
		for i := range 6 {
			found(t, s, fmt.Sprint(i), someFilter(t, all), all)
		}
	})
}

// found compares what a snapshot finds with what a loop finds.
func found(t *rapid.T, s *Snapshot, key string, filter dlq.Filter, all []*dlq.DeadLetter) {
	r, err := s.Find(t.Context(), key, filter)
	require.NoError(t, err)
	rows, untimed := plainly(s, filter, all)
	if s.Whole == len(all) {
		require.Equal(t, rows, r.rows)
		require.Equal(t, untimed, r.UntimedLeftOut)
		require.Zero(t, r.NotSearched)
	} else {
		missing := 0
		for _, i := range rows {
			if !slices.Contains(r.rows, i) {
				missing++
				require.Negative(t, s.row(int(i)).offset, "one that is in the file")
			}
		}
		for _, i := range r.rows {
			require.Contains(t, rows, i)
		}
		if filter.UUIDs == nil {
			require.GreaterOrEqual(t, r.NotSearched, missing)
		}
	}
	counted(t, s, r, all)
	paged(t, s, r, all)
	again, err := s.Find(t.Context(), key, dlq.Filter{})
	require.NoError(t, err)
	require.Same(t, r, again)
}

// counted compares the numbers of a result with a plain count.
func counted(t *rapid.T, s *Snapshot, r *Result, all []*dlq.DeadLetter) {
	var n Numbers
	var ages Ages
	groups, order := map[string]*Group{}, []string{}
	reasons, known := map[string]int{}, 0
	for _, i := range r.rows {
		l := all[i]
		n.Matched++
		n.Bytes += int64(len(l.Message.Body))
		n.Replayed += count(l.Replays > 0)
		n.Parked += count(l.IsParked())
		n.Unreadable += count(l.Unreadable != "")
		n.Untimed += count(l.LastFailure.IsZero())
		n.Oldest, n.Newest = earlier(n.Oldest, l.LastFailure), later(n.Newest, l.LastFailure)
		if !l.LastFailure.IsZero() {
			age := s.Began.Sub(l.LastFailure)
			bucket := slices.IndexFunc(ageBounds[:], func(b AgeBound) bool { return age <= b.Most })
			if bucket < 0 {
				bucket = len(ageBounds)
			}
			ages.ByBucket[bucket]++
		}
		if s.row(int(i)).kind == 0 {
			continue
		}
		known++
		reasons[string(l.Reason)]++
		f := l.Fingerprint()
		g := groups[f.ID]
		if g == nil {
			g = &Group{Fingerprint: f, Reason: l.Reason}
			g.ErrorType, g.Handler = cut(f.ErrorType, mostText), cut(f.Handler, mostText)
			groups[f.ID], order = g, append(order, f.ID)
		}
		g.Messages++
		g.Bytes += int64(len(l.Message.Body))
		g.Replayed += count(l.Replays > 0)
		g.Parked += count(l.IsParked())
		if s.row(int(i)).parking > 0 {
			g.Parking = l.Parking()
		}
		require.True(t, s.row(int(i)).parking > 0 || s.texts.most < mostTexts || l.Parking() == nil || !l.IsParked())
		g.Oldest, g.Newest = earlier(g.Oldest, l.LastFailure), later(g.Newest, l.LastFailure)
	}
	n.UntimedLeftOut = r.UntimedLeftOut // which is compared before
	n.Seen, n.ByReason = len(all), dlq.Counts{ByName: reasons, Others: n.Matched - known}
	require.Equal(t, n, r.Numbers)
	require.Equal(t, ages, r.Ages)
	require.Equal(t, n.Matched-known, r.Others)
	slices.SortFunc(order, func(a, b string) int {
		return cmp.Or(groups[b].Messages-groups[a].Messages, cmp.Compare(a, b))
	})
	require.Len(t, r.Groups, len(order))
	for i, id := range order {
		require.Equal(t, groups[id], r.Groups[i])
		f, ok := s.Fingerprint(id)
		require.True(t, ok)
		require.Equal(t, groups[id].Pattern, f.Pattern)
	}
	for _, run := range []string{"run-1", "run-2", "nobody", ""} {
		replayed := 0
		for i, l := range all {
			replayed += count(run != "" && l.Message.Headers[header.Replay] == run && s.row(i).run != 0)
		}
		require.Equal(t, replayed, s.Replayed(run))
	}
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// paged compares lists in all orders, and what leads from one dead letter to another.
func paged(t *rapid.T, s *Snapshot, r *Result, all []*dlq.DeadLetter) {
	for _, order := range Orders() {
		sorted := slices.Clone(r.rows)
		slices.SortStableFunc(sorted, func(i, j uint32) int {
			a, b := all[i], all[j]
			switch order {
			case Newest:
				return b.LastFailure.Compare(a.LastFailure)
			case Largest:
				return len(b.Message.Body) - len(a.Message.Body)
			case Most:
				return b.Replays - a.Replays
			default:
				return 0
			}
		})
		from, size := rapid.IntRange(0, len(all)+2).Draw(t, "from"), rapid.IntRange(0, 9).Draw(t, "size")
		page := s.Page(r, order, from, size)
		require.Len(t, page, max(0, min(size, len(sorted)-from)))
		for i, found := range page {
			l := all[sorted[from+i]]
			require.Equal(t, summaryOf(s, l), found, "%s: %d", order, i)
		}
		for i, row := range sorted {
			before, behind := s.Around(r, order, int(row)+1)
			require.Equal(t, [2]int{at(sorted, i-1), at(sorted, i+1)}, [2]int{before, behind}, "%s: %d", order, row+1)
		}
		for i := range all {
			if !slices.Contains(sorted, uint32(i)) {
				before, behind := s.Around(r, order, i+1)
				require.Equal(t, [2]int{}, [2]int{before, behind}, "%s: %d is not in it", order, i+1)
			}
		}
	}
	for position := range len(all) + 3 {
		passed := len(slices.DeleteFunc(slices.Clone(r.rows), func(i uint32) bool { return int(i)+1 > position }))
		require.Equal(t, passed, r.After(position), "after %d", position)
	}
	for _, uuid := range someUUIDs {
		i := slices.IndexFunc(all, func(l *dlq.DeadLetter) bool { return l.UUID == uuid })
		if found := s.Position(uuid); found != i+1 { // the only one that is not there is cut, and not in the file
			require.Greater(t, len(uuid), mostText, "the position of %.9q", uuid)
			require.Negative(t, s.row(i).offset)
		}
	}
	i := 0
	for l, err := range s.All(r) {
		if s.row(int(r.rows[i])).offset < 0 {
			require.ErrorIs(t, err, ErrNotKept)
		} else {
			require.NoError(t, err)
			require.Equal(t, all[r.rows[i]].UUID, l.UUID)
			require.Equal(t, all[r.rows[i]].Message.Body, l.Message.Body)
		}
		i++
	}
	require.Len(t, r.rows, i)
}

func at(rows []uint32, i int) int {
	if i < 0 || i >= len(rows) {
		return 0
	}
	return int(rows[i]) + 1
}

// summaryOf is what a list has to show of a dead letter; without what there was no room for.
func summaryOf(s *Snapshot, l *dlq.DeadLetter) Summary {
	u := Summary{Position: l.Position, UUID: cut(l.UUID, mostText), Reason: l.Reason, Fingerprint: l.Fingerprint().ID,
		ErrorType: l.ErrorType, Error: cut(l.Error, mostText), Handler: l.Handler, Topic: l.Topic, Calls: l.Calls,
		Replays: l.Replays, LastFailure: l.LastFailure, Bytes: len(l.Message.Body), Unreadable: l.Unreadable,
		Parked: l.IsParked(), Cut: len(l.UUID) > mostText}
	if r := s.row(l.Position - 1); r.offset < 0 {
		u.Unreadable = ""
		if r.kind == 0 {
			u.Reason, u.Fingerprint, u.ErrorType, u.Handler, u.Topic = "", "", "", "", ""
		}
		if r.error == 0 {
			u.Error = ""
		}
	}

	return u
}

// numbered are dead letters that differ.
func numbered(n int) []*dlq.DeadLetter {
	all := make([]*dlq.DeadLetter, n)
	for i := range all {
		all[i] = &dlq.DeadLetter{UUID: fmt.Sprint("uuid-", i), DeadLetter: retry.DeadLetter{
			Error: fmt.Sprintf("card %d declined", i), Reason: retry.ReasonExhausted},
			Message: amqp091.Publishing{Body: fmt.Appendf(nil, `{"n":%d}`, i)}}
	}

	return all
}

// More than one chunk: every search sees all of them, and several at a time see the same. The bytes
// are given back when nobody reads any more.
func TestMany(t *testing.T) {
	t.Parallel()
	const n = 2*chunkRows + 5
	files := &Files{Folder: t.TempDir(), Most: 1 << 30}
	dead := numbered(n)
	for i, l := range dead {
		l.Replays = i % 3
	}
	s := made(t, files, mostTexts, dead)
	require.NotZero(t, files.used.Load())
	entries, err := os.ReadDir(files.Folder)
	require.NoError(t, err)
	assert.Empty(t, entries, "no name leads to the file")

	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for _, text := range []string{`"n":8193`, `"n":4095`, `"n":0}`} {
				r, err := s.Find(t.Context(), text, dlq.Filter{Text: text})
				if assert.NoError(t, err) {
					assert.Equal(t, 1, r.Matched, text)
				}
			}
			r, err := s.Find(t.Context(), fmt.Sprint(i), dlq.Filter{ErrorContains: "card"})
			if assert.NoError(t, err) {
				assert.Equal(t, n, r.Matched)
			}
			for _, order := range []Order{Oldest, Newest} {
				assert.Equal(t, n, s.Page(r, order, n-1, 5)[0].Position)
			}
			for j, found := range s.Page(r, Most, 1000, 500) { // those with the same keep the order of the queue
				assert.Equal(t, 3*(1000+j)+3, found.Position)
			}
			l, err := s.Load(1 + i*1000)
			if assert.NoError(t, err) {
				assert.Equal(t, fmt.Sprint("uuid-", i*1000), l.UUID)
			}
		})
	}
	all.Wait()
	rows := 0
	for _, r := range s.results {
		rows += len(r.rows)
	}
	assert.LessOrEqual(t, rows, mostRows*n)
	for i := range mostResults + 1 {
		_, err := s.Find(t.Context(), fmt.Sprint("more ", i), dlq.Filter{MinReplays: 1000})
		require.NoError(t, err)
	}
	assert.Len(t, s.results, mostResults)
	assert.Equal(t, n, s.Position(fmt.Sprint("uuid-", n-1)))
	leave, ok := s.enter()
	require.True(t, ok)
	s.Release()
	s.Release()
	assert.NotZero(t, files.used.Load(), "somebody still reads it")
	leave()
	assert.Zero(t, files.used.Load())
}

func TestCut(t *testing.T) {
	t.Parallel()
	for text, wanted := range map[string]string{"1234567": "1234567", "12345678": "1234…", "123éé": "123éé",
		"123ééé": "123…"} {
		assert.Equal(t, wanted, cut(text, 7))
	}
}

// A snapshot that is given up while somebody reads it: who has begun ends, others are told.
func TestRelease(t *testing.T) {
	t.Parallel()
	const n = 3000
	for round := range 20 {
		files := &Files{Folder: t.TempDir(), Most: 1 << 30}
		texts := mostTexts
		if round%2 == 0 {
			texts = 1000 // so that also a search for an error reads the file
		}
		s := made(t, files, texts, numbered(n))
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for position := i + 1; position <= n; position += 4 {
					l, err := s.Load(position)
					if err == nil {
						assert.Equal(t, fmt.Sprint("uuid-", position-1), l.UUID)
					} else {
						assert.ErrorIs(t, err, ErrNotKept)
						return
					}
				}
			})
		}
		for _, f := range []dlq.Filter{{Text: "card"}, {ErrorContains: "card"},
			{Reasons: []retry.Reason{retry.ReasonExhausted}}} {
			all.Go(func() {
				for key := range 5 {
					r, err := s.Find(t.Context(), fmt.Sprint(key, f.Text, f.Reasons), f)
					if err != nil {
						assert.ErrorIs(t, err, ErrNotKept)
						continue
					}
					assert.Equal(t, n, r.Matched+r.NotSearched)
					assert.Equal(t, n, s.Everything().Matched)
				}
			})
		}
		all.Go(func() {
			for l, err := range s.All(s.Everything()) {
				if err != nil {
					assert.ErrorIs(t, err, ErrNotKept)
					assert.Nil(t, l)
				}
			}
		})
		s.Release()
		all.Wait()
		assert.Zero(t, files.used.Load())
		_, err := s.Load(1)
		require.ErrorIs(t, err, ErrNotKept)
		_, err = s.Find(t.Context(), "later", dlq.Filter{Text: "card"})
		require.ErrorIs(t, err, ErrNotKept)
	}
}

// A folder without room, and one that is not there: lists and numbers are whole.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	const n = 100
	s, err := New(&Files{Folder: t.TempDir() + "/nowhere", Most: 1 << 30})
	require.Error(t, err)
	for _, l := range numbered(n) {
		s.Add(l)
	}
	require.NoError(t, s.End())
	assert.Zero(t, s.Whole)
	assert.Equal(t, n, s.Everything().Matched)
	_, err = s.Load(1)
	require.ErrorIs(t, err, ErrNotKept)
	_, err = s.Find(t.Context(), "text", dlq.Filter{Text: "card"})
	require.ErrorIs(t, err, ErrNotKept)
	r, err := s.Find(t.Context(), "error", dlq.Filter{ErrorContains: "card 7 "})
	require.NoError(t, err)
	assert.Equal(t, 1, r.Matched)
	s.Release()

	files := &Files{Folder: t.TempDir(), Most: 3000} // two snapshots share it
	one, other := made(t, files, mostTexts, numbered(n)), made(t, files, mostTexts, numbered(n))
	assert.LessOrEqual(t, files.used.Load(), files.Most)
	assert.Positive(t, one.Whole)
	assert.Less(t, one.Whole, n)
	one.Release()
	third := made(t, files, mostTexts, numbered(n))
	assert.Positive(t, third.Whole, "there is room again")
	other.Release()
	third.Release()
	assert.Zero(t, files.used.Load())
}

// full writes so many bytes.
type full struct {
	io.Writer
	room int
}

var errFull = errors.New("no space left on device")

func (f *full) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	f.room -= n
	if n, err := f.Writer.Write(p[:n]); err != nil {
		return n, err
	}
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

// The disk is full in the middle, or only when the last part is written: what was not written is
// told as such, and all else works.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	const n = 2000
	for _, room := range []int{0, 1, 1000, 50_000, 300_000} {
		files := &Files{Folder: t.TempDir(), Most: 1 << 30}
		s, err := New(files)
		require.NoError(t, err)
		s.file.out.Reset(&full{s.file.File, room})
		whole := 0
		for i, l := range numbered(n) {
			l.Position, l.Message.AppId = i+1, strings.Repeat("x", 200)
			s.Add(l)
		}
		require.ErrorIs(t, s.End(), errFull)
		for i := range n {
			l, err := s.Load(i + 1)
			if err == nil {
				whole++
				require.Equal(t, fmt.Sprint("uuid-", i), l.UUID)
			} else {
				require.ErrorIs(t, err, ErrNotKept, "%d bytes, message %d", room, i+1)
			}
		}
		assert.LessOrEqual(t, whole*200, room)
		assert.Equal(t, n, s.Everything().Matched)
		r, err := s.Find(t.Context(), "text", dlq.Filter{Text: "card"})
		require.NoError(t, err)
		assert.Equal(t, [2]int{whole, n - whole}, [2]int{r.Matched, r.NotSearched})
		s.Release()
		assert.Zero(t, files.used.Load())
	}
}

// Whoever does not want to wait any more ends a search, and nobody gets half of a result.
func TestFindEnds(t *testing.T) {
	t.Parallel()
	s := made(t, &Files{Folder: t.TempDir(), Most: 1 << 30}, mostTexts, numbered(10))
	defer s.Release()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Find(gone, "text", dlq.Filter{Text: "card"})
	require.ErrorIs(t, err, context.Canceled)
	r, err := s.Find(t.Context(), "text", dlq.Filter{Text: "card"})
	require.NoError(t, err)
	assert.Equal(t, 10, r.Matched)
}

// Names and causes are bounded, whatever forged headers say.
func TestManyCauses(t *testing.T) {
	t.Parallel()
	all := numbered(mostGroups + 10)
	for i, l := range all {
		l.Handler, l.Reason = fmt.Sprint("handler-", i), retry.Reason(fmt.Sprint("reason-", i))
	}
	all = append(all, all[0], all[0])
	s := made(t, &Files{Folder: t.TempDir(), Most: 1 << 30}, mostTexts, all)
	defer s.Release()
	r := s.Everything()
	assert.Len(t, r.Groups, mostGroups)
	assert.Equal(t, 3, r.Groups[0].Messages)
	assert.Equal(t, 10, r.Others)
	assert.Len(t, r.ByReason.ByName, mostReasons)
	total := r.ByReason.Others
	for _, n := range r.ByReason.ByName {
		total += n
	}
	assert.Equal(t, len(all), total)
	assert.Len(t, s.Names().Handlers, mostGroups+10)
}

// An empty queue has a snapshot as well.
func TestEmpty(t *testing.T) {
	t.Parallel()
	s := made(t, &Files{Folder: t.TempDir(), Most: 1 << 30}, mostTexts, nil)
	assert.Zero(t, s.Everything().Matched)
	assert.Empty(t, s.Page(s.Everything(), Newest, 0, 50))
	assert.Zero(t, s.Position("a"))
	assert.Empty(t, s.Names().Reasons)
	before, behind := s.Around(s.Everything(), Oldest, 1)
	assert.Zero(t, before+behind)
	s.Release()
}
