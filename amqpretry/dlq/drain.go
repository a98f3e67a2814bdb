package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"golang.org/x/time/rate"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// window is how many messages are on their way at a time: published and not yet confirmed, or
// confirmed and not yet taken out. It is what can be in both places when a process is killed.
const window = 256

// batchSize is how many are acknowledged at a time, while the others are on their way. unsettled
// leaves room for one batch in the window: the broker's channel keeps acknowledgements for a quorum
// queue back for a moment, and loses them with the process.
const (
	batchSize = window / 4
	unsettled = window - batchSize
)

// settleLimit is how long a run that is interrupted waits for what is on its way.
const settleLimit = 10 * time.Second

// drain takes dead letters out of a queue.
type drain struct {
	queue  *Queue
	filter Filter
	limit  int // 0: all
	rate   float64
	dryRun bool
	locked bool // a dry run of a run that has the lock
	holds  bool // messages that follow one another are written together
	undo   io.Writer
	taken  Taken // what the undo file says of it
	// target is where they go; empty if they are deleted. route is another way than by the queue's
	// name; nil for none. With reject the queue itself dead-letters them.
	target string
	route  func(f *found, m *amqp091.Publishing) (exchange, key string)
	reject bool
	// copyOf makes what is published, for a frame of limit bytes; why not, if that cannot be. Nil
	// if they are deleted.
	copyOf func(f *found, limit int) (amqp091.Publishing, LeftReason)
	// passes tells dead letters that are not filtered. Nil means none.
	passes func(f *found) bool
	// missing tells how many of those that are done are not in their target any more. Nil if nobody
	// knows.
	missing func(r *run, done int) int

	progress func(Progress)
	settled  func(Report, error)
}

// publishes tells whether copies are sent.
func (d *drain) publishes() bool { return d.copyOf != nil && !d.reject }

// taken is a message on its way.
type taken struct {
	*found
	published *publish.Published // nil if it is deleted
	takes     int                // bytes, as it came or as it goes
}

// run is what a drain needs of the broker.
type run struct {
	connection *connection.Connection // for publishing, and for the lock
	link       *connection.Link
	publisher  *publish.QueuePublisher
	frame      int
	asker      asker
	target     *Target // nil if messages are deleted
}

// begin connects, and makes sure that nobody else takes messages out, and that they have somewhere
// to go.
func (q *Queue) begin(ctx context.Context, target string, dryRun bool) (_ *run, err error) {
	r := &run{connection: q.client.connect("replay")}
	defer func() {
		if err != nil {
			r.end(q.client)
		}
	}()

	link, err := r.connection.TryLink(ctx)
	if err != nil {
		return nil, err
	}
	r.asker = q.client.asker(link)
	if target != "" {
		if r.target, err = q.client.target(ctx, link, target); err != nil {
			return nil, err
		}
	}
	if !dryRun {
		if err := q.lock(ctx, link); err != nil {
			return nil, err
		}
	}
	r.link, r.publisher, r.frame = link, q.client.publisher(link), link.FrameSize()

	return r, nil
}

// guard refuses a run whose target would drop messages. Where the target has a limit that could, it
// counts first, unless that was done.
func (r *run) guard(ctx context.Context, p *passage) (err error) {
	mayLose := func(t *Target) bool { return t.limited() && t.loses() }
	may := mayLose(r.target)
	for _, o := range p.origins {
		may = may || mayLose(o.Target)
	}
	if p.dryRun || p.plan.AllowDrop || !may {
		return nil
	}
	counted := p.plan.Counted
	if counted == nil {
		count := p.drain(p.plan.Limit)
		count.dryRun, count.locked, count.undo, count.progress, count.settled = true, true, nil, nil, nil
		report, err := r.drain(ctx, count)
		if err != nil {
			return err
		}
		counted = &report
		counted.Origins = p.originReport()
		p.report.Edited, p.report.EditError, p.report.EditErrors = 0, nil, nil // the run counts anew
		for _, o := range p.origins {
			o.Messages, o.bytes = 0, 0
		}
	}

	return cmp.Or(r.target.Check(counted.most(p.plan.Limit)), checkDrops(counted.Origins))
}

func (r *run) end(c *Client) { c.disconnect(r.connection) }

// drain goes once through the queue.
func (r *run) drain(ctx context.Context, d *drain) (report Report, err error) {
	s, err := d.queue.scan(ctx, !d.dryRun || d.locked)
	if err != nil {
		return report, err
	}
	defer func() { err = and(err, s.release()) }()
	report.begin(s, r.target)

	ctx, fail := context.WithCancelCause(s.ctx)
	defer fail(nil)
	settled := newAcknowledger(ctx, d, r.publisher, fail)
	settled.heldUp = func() { r.publisher.Flush(); s.settle() }
	s.waits = r.publisher.Flush
	s.idle = func(ctx context.Context) error {
		settled.heldUp()
		return settled.idle(ctx)
	}
	// What was sent is taken out before the rest is given back, whatever has ended the run.
	defer func() {
		settled.heldUp()
		done, failed := settled.wait()
		report.Done, report.Refused, report.Unsettled = report.Done+done, settled.refused, settled.secured()-done
		if errors.Is(err, errSettling) {
			err = nil // it is failed that says why
		}
		err = and(err, failed)
		tell(d.progress, report.Progress)
		if err == nil && !d.dryRun && d.missing != nil { // else the broker may be gone
			report.Dropped = d.missing(r, report.Done)
		}
		d.tellSettled(report, err)
	}()

	limiter := rate.NewLimiter(rate.Inf, 1)
	if d.rate > 0 && !d.dryRun {
		limiter.SetLimit(rate.Limit(d.rate))
		s.slow(d.rate)
	}

	now, all, sent := time.Now(), d.filter.matchesAll(), 0
	for {
		if err := settled.failed(); err != nil {
			return report, nil // it comes with wait
		}
		if d.limit > 0 && sent >= d.limit {
			break
		}
		f, err := s.next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return report, err
		}
		report.Seen = s.seen()

		if d.passes != nil && d.passes(f) || !all && !report.matches(d.filter, f.deadLetter(), now) {
			f.keep()
			tell(d.progress, settled.progress(report.Progress))
			continue
		}
		message, goes := d.prepare(&report, f, r.frame)
		if !goes || d.dryRun {
			f.keep()
			if goes {
				sent += report.goes(message.Body)
			}
			tell(d.progress, settled.progress(report.Progress))
			continue
		}
		if err := s.pace(ctx, limiter, f); err != nil {
			f.keep()
			return report, cmp.Or(context.Cause(ctx), err) // it gives up at once if the deadline comes first
		}
		if !s.holder.claim(f.block, f.delivery.DeliveryTag) { // it was due, and has gone on
			f.keep()
			report.Matched--
			continue
		}
		if err := settled.send(ctx, f, message); err != nil {
			return report, err
		}
		sent += report.goes(message.Body)
		tell(d.progress, settled.progress(report.Progress))
	}

	return report, nil
}

// pace waits until the next message may go. One that has gone on is not one of those.
func (s *scan) pace(ctx context.Context, limiter *rate.Limiter, f *found) error {
	if !s.holder.holds(f.block, f.delivery.DeliveryTag) {
		return nil
	}

	return limiter.Wait(ctx)
}

// errSettling ends a run whose messages cannot be taken out.
var errSettling = errors.New("cannot acknowledge the messages that were sent")

func (d *drain) targetOf(f *found) string {
	if f.origin != nil {
		return f.origin.Queue
	}

	return d.target
}

func (d *drain) tellSettled(report Report, err error) {
	if d.settled != nil {
		d.settled(report, explainLost("read", d.queue.name, err))
	}
}

// prepare counts one that matched, and makes what is sent of it, if it can go.
func (d *drain) prepare(report *Report, f *found, frame int) (message amqp091.Publishing, goes bool) {
	report.Matched++
	left := LeftReason("")
	switch {
	case f.unreadable != "":
		left = LeftUnreadable
	case d.copyOf != nil:
		message, left = d.copyOf(f, frame)
	}
	if left != "" {
		report.leave(left)
	}

	return message, left == ""
}

// acknowledger takes out of the queue what has been confirmed: in batches, in the order in which it
// was sent, and after the undo file has it.
type acknowledger struct {
	drain     *drain
	publisher *publish.QueuePublisher
	undo      *lines

	pending chan taken
	slots   chan struct{}
	freed   chan struct{} // has something in it when bytes has become less
	run     context.Context
	ctx     context.Context // of the waiting for confirms: it outlives the run's a little
	stopped func() bool
	cancel  context.CancelFunc
	ended   chan struct{}
	fail    context.CancelCauseFunc // ends the run: who sends may be waiting for what never comes
	heldUp  func()                  // called before who sends waits for room: what makes it may be waiting for him

	sent    int // by who sends
	removed int // those whose removal was asked for, by who acknowledges

	mu      sync.Mutex
	bytes   int // of messages that are on their way
	done    int
	refused int // the target has certainly not taken them
	err     error
}

func newAcknowledger(ctx context.Context, d *drain, publisher *publish.QueuePublisher,
	fail context.CancelCauseFunc) *acknowledger {
	s := &acknowledger{drain: d, publisher: publisher, run: ctx, fail: fail, pending: make(chan taken, window),
		slots: make(chan struct{}, unsettled), freed: make(chan struct{}, 1), ended: make(chan struct{})}
	if d.undo != nil {
		s.undo = newLines(d.undo, "the undo file")
		s.undo.taken = d.taken
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.stopped = context.AfterFunc(ctx, func() { // the confirms of what was sent are worth some seconds
		time.AfterFunc(settleLimit, s.cancel)
	})
	go s.settle()

	return s
}

// send publishes a message, when there is room in the window. What is at hand behind it is written
// with it.
func (s *acknowledger) send(ctx context.Context, f *found, message amqp091.Publishing) error {
	t := taken{found: f, takes: max(f.size, len(message.Body))}
	if err := s.enter(ctx, t.takes); err != nil {
		f.keep()
		return err
	}

	s.sent++
	if s.drain.publishes() {
		var err error
		if s.drain.holds {
			s.publisher.Hold()
		}
		exchange, key := "", s.drain.targetOf(f)
		if s.drain.route != nil {
			exchange, key = s.drain.route(f, &message)
		}
		if t.published, err = s.publisher.Publish(ctx, exchange, key, message); err != nil {
			f.keep()
			return explain(s.drain.targetOf(f), err)
		}
	}
	s.pending <- t

	return nil
}

// enter waits until there is room for a message of that size, in number and in bytes. One has room
// whatever its size.
func (s *acknowledger) enter(ctx context.Context, size int) error {
	if len(s.slots) == cap(s.slots) {
		s.publisher.Flush()
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for !s.fits(size) {
		s.heldUp()
		select {
		case <-s.freed:
		case <-ctx.Done():
			<-s.slots
			return context.Cause(ctx)
		}
	}

	return nil
}

func (s *acknowledger) fits(size int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes > 0 && s.bytes+size > s.drain.queue.client.room {
		return false
	}
	s.bytes += size

	return true
}

// leave makes room: nobody needs these messages any more.
func (s *acknowledger) leave(batch []taken) {
	s.mu.Lock()
	for _, t := range batch {
		s.bytes -= t.takes
	}
	s.mu.Unlock()
	select {
	case s.freed <- struct{}{}:
	default:
	}
	for range batch {
		<-s.slots
	}
}

// settle waits for confirms; while the next ones are waited for, those before are acknowledged.
func (s *acknowledger) settle() {
	confirmed := make(chan []taken)
	go func() {
		defer close(confirmed)
		for first := range s.pending {
			batch := s.batch(first)
			good := batch
			if s.failed() != nil {
				good = nil
			} else if err := s.confirm(&good); err != nil {
				s.end(0, err)
			}
			s.giveUp(batch[len(good):])
			confirmed <- good
			s.leave(batch[len(good):]) // nobody acknowledges them
		}
	}()

	defer close(s.ended)
	for batch := range confirmed {
		s.removed += len(batch)
		done, err := s.ack(batch)
		s.end(done, err)
		s.leave(batch)
	}
}

// giveUp counts those that the target has refused, of which so much is known.
func (s *acknowledger) giveUp(batch []taken) {
	now, cancel := context.WithCancel(s.ctx)
	cancel()
	for _, t := range batch {
		if t.published == nil {
			continue
		}
		if _ = t.published.Wait(now, now); t.published.Refused() { // the others may be there
			s.mu.Lock()
			s.refused++
			s.mu.Unlock()
		}
	}
}

// end notes what was done, and ends the run after an error.
func (s *acknowledger) end(done int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done += done
	if err != nil {
		s.err = and(s.err, err)
		s.fail(errSettling)
	}
}

// batch is a message with all that have been sent since.
func (s *acknowledger) batch(first taken) []taken {
	batch := []taken{first}
	for len(batch) < batchSize {
		select {
		case t, ok := <-s.pending:
			if !ok {
				return batch
			}
			batch = append(batch, t)
		default:
			return batch
		}
	}

	return batch
}

// confirm waits until the broker has what was published, and the undo file what is going. It cuts
// the batch at the first that the broker has not.
func (s *acknowledger) confirm(batch *[]taken) error {
	secured := make(chan error, 1)
	go func(all []taken) { secured <- s.record(all) }(*batch)

	var err error
	for i, t := range *batch {
		if t.published == nil {
			continue
		}
		if err = t.published.Wait(s.ctx, s.run); err != nil {
			*batch, err = (*batch)[:i], explain(s.drain.targetOf(t.found), err)
			break
		}
	}
	if failed := <-secured; failed != nil {
		*batch = nil
		return and(err, failed)
	}

	return err
}

// record writes to the undo file, and makes sure of it. Who sends need not wait for that.
func (s *acknowledger) record(batch []taken) error {
	if s.undo == nil {
		return nil
	}
	for _, t := range batch {
		if t.origin != nil {
			s.undo.taken.To = t.origin.Queue
		}
		if err := s.undo.write(t.deadLetter(), s.drain.queue.name); err != nil {
			return err
		}
	}

	return s.undo.secure()
}

// ack takes a batch out of the queue, block by block.
func (s *acknowledger) ack(batch []taken) (done int, err error) {
	for done < len(batch) {
		b, tags := batch[done].block, []uint64(nil)
		for _, t := range batch[done:] {
			if t.block != b {
				break
			}
			tags = append(tags, t.delivery.DeliveryTag)
		}
		if err := b.ack(tags, s.drain.reject); err != nil {
			return done, err
		}
		done += len(tags)
	}

	return done, nil
}

// explain says what an error of a publish means for the one who has asked for it.
func explain(target string, err error) error {
	switch {
	case errors.Is(err, publish.ErrReturned):
		return &NoQueueError{Queue: target, What: "target", Err: err}
	case errors.Is(err, publish.ErrRefused):
		return fmt.Errorf("target %q: %w", target, err)
	default:
		return explainAccess(rabbitmq.KindExchange, "amq.default", err)
	}
}

func (s *acknowledger) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.err
}

func (s *acknowledger) progress(p Progress) Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.Done = s.done

	return p
}

// idle waits until nothing is on its way.
func (s *acknowledger) idle(ctx context.Context) error {
	for range unsettled {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for range unsettled {
		<-s.slots
	}

	return s.failed()
}

// secured is how many messages are, or may be, somewhere else: sent to the target and not refused,
// or whole in the undo file, or on their way out. It is for after wait.
func (s *acknowledger) secured() int {
	switch {
	case s.drain.publishes():
		return s.sent - s.refused
	case s.undo != nil:
		return s.undo.whole
	default:
		return s.removed
	}
}

// wait waits for what is on its way, and ends.
func (s *acknowledger) wait() (done int, err error) {
	close(s.pending)
	<-s.ended
	s.stopped()
	s.cancel()

	return s.done, s.err
}

// fitting says why a copy that does not fit into a frame stays.
func fitting(p amqp091.Publishing, fits bool) (amqp091.Publishing, LeftReason) {
	if !fits {
		return p, LeftTooLarge
	}

	return p, ""
}
