package dlq

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/config"
)

// Browse gives the dead letters that match, the oldest first, and leaves all of them where they
// are. While it runs, it holds what it has seen: others see the queue without these, and find all
// in the old order afterwards. It ends after the last message that was there when it began, with
// the first error, or when the loop is left. If the order is another one after that, see
// OrderError, Config.Logger is told.
//
// No number of browses makes the broker drop or dead-letter a message: a queue that is not declared
// as ours, and counts browses, is refused with an *[UnsafeError] long before its limit. If the
// process is killed while it browses, the broker gives everything back as well; a longer queue may
// then be in another order.
func (q *Queue) Browse(ctx context.Context, filter Filter) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		left := false
		err := q.each(ctx, filter, nil, nil, func(*scan) {}, func(l *DeadLetter) bool {
			left = !yield(*l, nil)
			return !left
		})
		switch {
		case err == nil:
		case left: // nobody takes it any more
			q.client.config.Logger.Error("Cannot return browsed messages to their queue in order", err,
				watermill.LogFields{"amqp_queue_name": q.name})
		default:
			yield(DeadLetter{}, err)
		}
	}
}

// Read gives all dead letters, the oldest first, and leaves them where they are, as Browse does.
// begun is called once when the queue is locked and counted, with Ready, Hidden and Consumers of
// the Stat; next is called for each dead letter until it returns false.
func (q *Queue) Read(ctx context.Context, begun func(Stat), next func(*DeadLetter) bool) error {
	return q.each(ctx, Filter{}, nil, nil, func(s *scan) {
		begun(Stat{Ready: s.first, Hidden: s.hidden, Consumers: s.others})
	}, next)
}

// each gives the dead letters that match, until more is false, and counts in untimed those that are
// left out for their missing time; nil for nowhere.
func (q *Queue) each(ctx context.Context, filter Filter, untimed *int, progress func(Progress), begun func(*scan),
	more func(*DeadLetter) bool) (err error) {
	if err := filter.Validate(); err != nil {
		return err
	}
	defer func() { err = explainLost("read", q.name, err) }()
	s, err := q.scan(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = and(err, s.release()) }()
	begun(s)

	now, matched := time.Now(), 0
	for {
		f, err := s.next(s.ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.keep()
		matches := filter.Matches(f.deadLetter(), now)
		switch {
		case matches:
			matched++
		case untimed != nil && filter.Untimed(f.deadLetter()):
			*untimed++
		}
		if progress != nil {
			progress(Progress{Total: s.first, Seen: s.seen(), Matched: matched})
		}
		if matches && !more(f.deadLetter()) {
			return nil
		}
	}
}

// Get gives the first dead letter with a UUID, and leaves it where it is. Without one the error is
// a *[NotFoundError].
func (q *Queue) Get(ctx context.Context, uuid string) (DeadLetter, error) {
	var deadLetter DeadLetter
	var scanned *scan
	found := false
	err := q.each(ctx, Filter{UUIDs: []string{uuid}}, nil, nil, func(s *scan) { scanned = s },
		func(l *DeadLetter) bool {
			deadLetter, found = *l, true
			return false
		})
	if err == nil && !found {
		err = &NotFoundError{Queue: q.name, UUID: uuid, Seen: scanned.seen()}
	}

	return deadLetter, err
}

// Stat counts the dead letters that match, and leaves all of them where they are.
func (q *Queue) Stat(ctx context.Context, filter Filter) (Stat, error) {
	var stat Stat
	var scanned *scan
	err := q.each(ctx, filter, &stat.UntimedLeftOut, nil, func(s *scan) { scanned = s }, func(l *DeadLetter) bool {
		stat.add(l)
		return true
	})
	if scanned != nil {
		stat.Ready, stat.Seen = scanned.first, scanned.seen()
		stat.Hidden, stat.Consumers = scanned.hidden, scanned.others
	}

	return stat, err
}

// Export writes dead letters as JSON Lines, and leaves all of them where they are. Each line has
// everything of one message: its body, its properties and its headers with their AMQP types. It
// writes whole lines only, also before an error.
func (q *Queue) Export(ctx context.Context, w io.Writer, options ExportOptions) (Report, error) {
	if options.Limit < 0 {
		return Report{}, &config.FieldError{Path: "ExportOptions.Limit", Wanted: "0 (all) or more",
			Found: itoa(options.Limit)}
	}
	var report Report
	var failed error
	out := newLines(w, "what is exported")
	err := q.each(ctx, options.Filter, &report.UntimedLeftOut, func(p Progress) {
		p.Done = report.Done
		report.Progress = p
		tell(options.Progress, report.Progress)
	}, func(s *scan) { report.begin(s, nil) }, func(l *DeadLetter) bool {
		if l.Unreadable != "" {
			report.leave(LeftUnreadable)
			return true
		}
		if failed = out.write(l, q.name); failed != nil {
			return false
		}
		report.Done++

		return options.Limit == 0 || report.Done < options.Limit
	})

	return report, and(and(err, failed), out.flush())
}

func tell(progress func(Progress), p Progress) {
	if progress != nil {
		progress(p)
	}
}
