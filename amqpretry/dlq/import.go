package dlq

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"golang.org/x/time/rate"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/publish"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Import publishes exported dead letters, to the dead-letter queue or another one, in the order of
// the file. Properties and headers that RabbitMQ would act on again, or refuse (x-death, CC,
// expiration, user id), are told in our headers instead; the rest is the same, byte by byte.
//
// Into the queue of a ladder for unroutable messages (topology.Ladder.Unroutable), messages go by
// the exchange of the same name, with the routing key that they had, so they keep target and delay.
// They are no dead letters: all their headers stay the same, except those of the broker.
//
// It stops before the first message that would make the target drop one, with a *[DropError].
//
// It stops at the first line that cannot be read, or is longer than 192 MiB, with a *[LineError]:
// what was before it is imported.
func (q *Queue) Import(ctx context.Context, r io.Reader, options ImportOptions) (report Report, err error) {
	report.Left = []Left{}
	if err := options.validate(); err != nil {
		return report, err
	}
	target := cmp.Or(options.To, q.name)
	if err := q.checkReturns("ImportOptions.To", target); err != nil && target != q.mainQueue {
		return report, err
	}
	defer func() { err = explainLost("import into", target, err) }()
	connection := q.client.connect("import")
	defer q.client.disconnect(connection)
	link, err := connection.TryLink(ctx)
	if err != nil {
		return report, err
	}
	into, err := q.client.target(ctx, link, target)
	if err != nil {
		return report, err
	}

	ladder, err := topology.ParseLadderName(strings.TrimSuffix(target, ".unroutable"))
	asTaken := err == nil && target == ladder.Unroutable()
	if asTaken {
		if err := checkExchange(q.client.asker(link), target); err != nil {
			return report, err
		}
	}

	if options.OnlyMissing {
		there, err := q.present(ctx, options.FailedAgain)
		if err != nil {
			return report, err
		}
		where := options.Filter.Where
		options.Filter.Where = func(l *DeadLetter) bool { return !there.has(l) && (where == nil || where(l)) }
	}

	i := &importer{queue: q, target: target, asTaken: asTaken, options: options, into: into}

	return i.importAll(ctx, r, link)
}

// importAll imports a file over a connection.
func (i *importer) importAll(ctx context.Context, r io.Reader, link *connection.Link) (Report, error) {
	q, options, into := i.queue, i.options, i.into
	i.run, i.publisher, i.frame, i.asked = ctx, q.client.publisher(link), link.FrameSize(), map[any]bool{}
	i.limiter = rate.NewLimiter(rate.Inf, 1)
	if options.Rate > 0 {
		i.limiter.SetLimit(rate.Limit(options.Rate))
	}
	err := i.all(ctx, bufio.NewReaderSize(r, 64<<10))
	settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	err = errors.Join(err, i.settle(settle, 0))
	i.report.Left, i.report.Target = []Left{}, into
	i.report.weigh(0)
	if err == nil && !options.DryRun {
		i.report.Dropped = into.missing(q.client.asker(link), i.report.Done)
	}

	return i.report, err
}

// checkExchange checks that an exchange is there: a publish to a missing one closes the channel.
func checkExchange(a asker, name string) error {
	err := a.onChannel(func(channel *amqp091.Channel) error {
		return channel.ExchangeDeclarePassive(name, amqp091.ExchangeFanout, true, false, false, false, nil)
	})
	if e := (*amqp091.Error)(nil); errors.As(err, &e) && e.Code == amqp091.NotFound {
		return fmt.Errorf("cannot import into queue %q: the exchange of the same name does not exist; declare the "+
			"ladder first: %w", name, err)
	}

	return explainAccess(rabbitmq.KindExchange, name, err)
}

func (o ImportOptions) validate() error {
	err := errors.Join(o.Filter.Validate(), checkRun("ImportOptions", 0, o.Rate))
	if o.Skip < 0 {
		err = errors.Join(err, &config.FieldError{Path: "ImportOptions.Skip", Wanted: "0 or more lines",
			Found: itoa(o.Skip)})
	}

	return err
}

// longestLine has room for a body of 128 MiB, the most that RabbitMQ takes by default (from 4.0 on
// 16 MiB), in base64, with its headers.
const longestLine = 192 << 20

type importer struct {
	queue     *Queue
	run       context.Context
	target    string
	asTaken   bool              // by the exchange of the target, with the routing key of before
	places    map[string]*place // by their queues, of messages that are to wait again; else nil
	options   ImportOptions
	publisher *publish.QueuePublisher
	into      *Target
	frame     int
	limiter   *rate.Limiter

	asked map[any]bool // by Taken, and by queue

	report  Report
	lines   int        // read so far
	sends   int        // of them
	pending []imported // in the order of the lines
	bytes   int64      // of their lines
}

// imported is a line that was read; nothing was published if it did not match.
type imported struct {
	line      int
	published *publish.Published
}

func (i *importer) all(ctx context.Context, in *bufio.Reader) error {
	now := time.Now()
	for {
		line, err := readLine(in, longestLine)
		if errors.Is(err, errLongLine) {
			return &LineError{Line: i.lines + 1, Err: err}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		whole := err == nil
		if len(bytes.TrimSpace(line)) > 0 {
			i.lines++
			if i.lines > i.options.Skip {
				if err := i.one(ctx, line, whole, now); err != nil {
					return err
				}
			}
		} else if whole {
			i.lines++
		}
		if !whole {
			return nil
		}
		most := i.window()
		if i.bytes += int64(len(line)); i.bytes > windowBytes {
			most = 1
		}
		if len(i.pending) >= most {
			if err := i.settle(ctx, most/2); err != nil {
				return err
			}
		}
	}
}

// errLongLine is the error of a line that is too long for an export.
var errLongLine = errors.New("it is too long")

// readLine reads up to a line feed, which is given as well, or to the end, which is io.EOF. Of a
// longer line no more is held in memory than that: in parts, since a buffer that grows is copied,
// and takes three times as much.
func readLine(in *bufio.Reader, longest int) (line []byte, err error) {
	var parts [][]byte
	size := 0
	for {
		part, err := in.ReadSlice('\n')
		if size += len(part); size > longest {
			return nil, fmt.Errorf("%w: wanted at most %d MiB; check that the file is an export, with one "+
				"message a line", errLongLine, longest>>20)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.Join(append(parts, part), nil), err
		}
		parts = append(parts, bytes.Clone(part))
	}
}

// window is how many may be on their way. At a low rate it is as many as go in half a second, so
// that those confirmed long ago are told.
func (i *importer) window() int {
	if i.options.Rate <= 0 {
		return window
	}

	return max(1, int(min(window, i.options.Rate/2)))
}

func (i *importer) one(ctx context.Context, line []byte, whole bool, now time.Time) error {
	record, err := decodeRecord(bytes.TrimSpace(line))
	if err != nil && !whole && cut(line) {
		i.report.Truncated = true
		return nil
	}
	if err != nil {
		return &LineError{Line: i.lines, Err: err}
	}
	i.report.Seen++
	d := deliveryOf(record)
	deadLetter := newDeadLetter(&d, "", i.queue.mainQueue, i.queue.client.config.UUIDHeader, i.lines)
	if !i.report.matches(i.options.Filter, &deadLetter, now) {
		i.pending = append(i.pending, imported{line: i.lines})
		return nil
	}
	i.report.Matched++

	message, fits := i.copyOf(&d)
	if !fits {
		return &LineError{Line: i.lines, Err: fmt.Errorf("its headers are too large for a frame of the broker (%d "+
			"bytes)", i.frame)}
	}
	if err := i.ask(record); err != nil {
		return err
	}
	i.sends++
	i.report.Bytes += int64(len(message.Body))
	if i.options.DryRun {
		return nil
	}
	if !i.options.AllowDrop {
		if err := i.into.Check(i.sends, i.report.Bytes); err != nil {
			return err
		}
	}
	if err := i.limiter.Wait(ctx); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	exchange, key := "", i.target
	switch p := i.places[record.Queue]; {
	case i.places != nil && (p == nil || !p.serves(d.RoutingKey)):
		return &LineError{Line: i.lines, Err: fmt.Errorf("it did not wait for %s in a queue that is there, but in %q",
			i.target, record.Queue)}
	case i.places != nil:
		exchange, key = p.waitAgain(&message, d.RoutingKey)
	case i.asTaken:
		exchange, key = i.target, d.RoutingKey
	}
	published, err := i.publisher.Publish(ctx, exchange, key, message)
	if err != nil {
		return i.explain(err)
	}
	i.pending = append(i.pending, imported{i.lines, published})

	return nil
}

func (i *importer) copyOf(d *amqp091.Delivery) (message amqp091.Publishing, fits bool) {
	if i.asTaken {
		return codec.AsTaken(d, i.frame)
	}

	return codec.MovedOf(d, i.queue.mainQueue, i.frame)
}

func (i *importer) explain(err error) error {
	switch {
	case !i.asTaken || errors.Is(err, publish.ErrRefused):
		return explain(i.target, err)
	case errors.Is(err, publish.ErrReturned) && i.places != nil:
		return fmt.Errorf("cannot let messages of %s wait again: no queue is bound for their delay; declare the retry "+
			"topology first: %w", i.target, err)
	case errors.Is(err, publish.ErrReturned):
		return fmt.Errorf("cannot import into queue %q: the exchange of the same name is not bound to it; declare the "+
			"ladder first: %w", i.target, err)
	default:
		return explainAccess(rabbitmq.KindExchange, i.target, err)
	}
}

// ask asks whether a message may be imported that was sent on, or that comes from another
// dead-letter queue.
func (i *importer) ask(r record) error {
	if ask := i.options.Elsewhere; ask != nil && r.Queue != "" && r.Queue != i.queue.name && !i.asked[r.Queue] {
		i.asked[r.Queue] = true
		if err := ask(r.Queue); err != nil {
			return err
		}
	}
	if i.options.Taken == nil || !r.Taken.IsElsewhere() || i.asked[r.Taken] {
		return nil
	}
	i.asked[r.Taken] = true

	return i.options.Taken(r.Taken)
}

// cut tells whether a line is the beginning of an object: whoever wrote it was killed. Whatever
// else is wrong with a last line is wrong with any.
func cut(line []byte) bool {
	var object json.RawMessage
	err := json.NewDecoder(bytes.NewReader(line)).Decode(&object)

	return bytes.HasPrefix(bytes.TrimSpace(line), []byte("{")) && errors.Is(err, io.ErrUnexpectedEOF)
}

// deliveryOf is the message as a consumer would have got it.
func deliveryOf(r record) amqp091.Delivery {
	m := r.Message

	return amqp091.Delivery{
		Headers: m.Headers, ContentType: m.ContentType, ContentEncoding: m.ContentEncoding,
		DeliveryMode: m.DeliveryMode, Priority: m.Priority,
		CorrelationId: m.CorrelationId, ReplyTo: m.ReplyTo, Expiration: m.Expiration, MessageId: m.MessageId,
		Timestamp: m.Timestamp, Type: m.Type,
		UserId: m.UserId, AppId: m.AppId, Body: m.Body, Exchange: r.CameBy.Exchange, RoutingKey: r.CameBy.RoutingKey,
	}
}

// settle waits for confirms, in order, until no more than so many are on their way, and tells how
// far it is.
func (i *importer) settle(ctx context.Context, most int) error {
	var failed error
	done := 0
	for ; failed == nil && len(i.pending) > most; i.pending = i.pending[1:] {
		first := i.pending[0]
		if first.published != nil {
			if failed = first.published.Wait(ctx, i.run); failed != nil {
				break
			}
			i.report.Done++
		}
		done = first.line
	}
	if len(i.pending) == 0 {
		i.bytes = 0
	}
	if failed != nil {
		failed, i.pending = i.explain(failed), nil // nobody knows of the others
	}
	if done > 0 {
		tell(i.options.Progress, i.report.Progress)
		if i.options.Imported != nil && !i.options.DryRun {
			failed = errors.Join(failed, i.options.Imported(done))
		}
	}

	return failed
}
