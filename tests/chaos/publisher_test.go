package chaos

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// publisher publishes numbered messages until there are enough, confirmed and mandatory, and again
// where it was not told that the broker has them.
type publisher struct {
	broker  *broker
	wanted  int
	lasting time.Duration // over which they are spread
	ahead   int           // of what has ended, at the most
	random  *rand.Rand
	topics  []Topic
	ended   func() int

	mu   sync.Mutex
	sent []*Sent
}

const batch = 50

// run publishes until everything is sent, or until it is to stop.
func (p *publisher) run(ctx context.Context) {
	began := time.Now()
	for ctx.Err() == nil && p.count() < p.wanted {
		due := int(float64(p.wanted) * float64(time.Since(began)) / float64(p.lasting))
		if p.count() > due || p.count()-p.ended() > p.ahead {
			<-time.After(50 * time.Millisecond)
			continue
		}
		messages := make([]*Sent, min(batch, p.wanted-p.count()))
		for i := range messages {
			messages[i] = p.make(p.count() + i)
		}
		p.mu.Lock()
		p.sent = append(p.sent, messages...)
		p.mu.Unlock()

		for pending := messages; len(pending) > 0; {
			pending = p.publish(pending)
		}
	}
}

func (p *publisher) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()

	return len(p.sent)
}

// publish gives back what the broker has not confirmed.
func (p *publisher) publish(messages []*Sent) (pending []*Sent) {
	conn, err := amqp091.DialConfig(p.broker.URI, amqp091.Config{
		Heartbeat: 2 * time.Second, Dial: amqp091.DefaultDial(3 * time.Second),
	})
	if err != nil {
		<-time.After(100 * time.Millisecond)
		return messages
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	ch, err := conn.Channel()
	if err != nil {
		return messages
	}
	if err := ch.Confirm(false); err != nil {
		return messages
	}
	returns := ch.NotifyReturn(make(chan amqp091.Return, len(messages)))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// A connection that an alarm has blocked takes nothing, and would wait for ever.
	stop := context.AfterFunc(ctx, func() { _ = conn.CloseDeadline(time.Now()) })
	defer stop()

	confirmations := make([]*amqp091.DeferredConfirmation, len(messages))
	for i, m := range messages {
		m.Times++
		if m.Times == 1 {
			m.Published = Now()
		}
		if confirmations[i], err = ch.PublishWithDeferredConfirm("", m.Topic, true, false, m.Message); err != nil {
			break
		}
	}
	returned := map[string]bool{}
	for i, m := range messages {
		acked := false
		if c := confirmations[i]; c != nil {
			acked, err = c.WaitContext(ctx)
		}
		for len(returns) > 0 {
			returned[rabbit.UUID(amqp091.Delivery{Headers: (<-returns).Headers})] = true
		}
		if acked && err == nil && !returned[m.ID] {
			m.Confirmed = Now()
		} else {
			pending = append(pending, m)
		}
	}

	return pending
}

// fates by how common they are, of 100.
var fates = []struct {
	fate.Fate
	of100 int
}{
	{fate.Succeeds, 47}, {fate.Slow, 6}, {fate.Once, 12}, {fate.Twice, 8}, {fate.Postponed, 5}, {fate.Never, 8},
	{fate.Panics, 4}, {fate.Permanent, 4}, {fate.Dropped, 3}, {fate.Undecodable, 3},
}

// pick gives the fate of a number below 100.
func pick(n int) fate.Fate {
	for _, f := range fates {
		if n < f.of100 {
			return f.Fate
		}
		n -= f.of100
	}
	panic("the fates are not 100 in all")
}

// make makes a message at random.
func (p *publisher) make(number int) *Sent {
	r := p.random
	f := pick(r.IntN(100))
	id := fmt.Sprintf("%s-%d", f, number)
	m := amqp091.Publishing{
		DeliveryMode: amqp091.Persistent,
		Headers:      amqp091.Table{uuidKey: id},
		Body:         randomBytes(r, size(r)),
	}
	for range r.IntN(6) {
		m.Headers[randomText(r, 1, 30)] = randomText(r, 0, 200)
	}
	if r.IntN(3) == 0 {
		m.ContentType, m.ContentEncoding = randomText(r, 0, 30), randomText(r, 0, 10)
		m.CorrelationId, m.ReplyTo, m.MessageId = randomText(r, 0, 60), randomText(r, 0, 60), randomText(r, 0, 60)
		m.Type, m.AppId = randomText(r, 0, 60), randomText(r, 0, 60)
		m.Priority = uint8(r.IntN(10))
		m.Timestamp = time.Unix(Now().Unix()-int64(r.IntN(600)), 0)
	}
	if r.IntN(4) == 0 {
		maps.Copy(m.Headers, typed(r))
	}

	return &Sent{Topic: p.topics[r.IntN(len(p.topics))].Name, ID: id, Message: m}
}

// size of a body: most are small, some are larger than a frame.
func size(r *rand.Rand) int {
	switch r.IntN(100) {
	case 0:
		return 0
	case 1:
		return 131_000 + r.IntN(200_000)
	default:
		return r.IntN(800)
	}
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}

	return b
}

func randomText(r *rand.Rand, least, most int) string {
	const alphabet = `abcdefghijklmnopqrstuvwxyz0123456789 .:/-_"'\{}äöüß漢字🐇` + "\n\t"
	runes := []rune(alphabet)
	var b strings.Builder
	b.WriteString("h") // never one of ours, nor of the broker's
	for n := least + r.IntN(most-least+1); b.Len() < n; {
		b.WriteRune(runes[r.IntN(len(runes))])
	}
	s := b.String()
	if len(s) > most+1 {
		s = strings.ToValidUTF8(s[:most+1], "")
	}

	return s
}

// typed are headers of types that Watermill's metadata does not have.
func typed(r *rand.Rand) amqp091.Table {
	return amqp091.Table{
		TypedPrefix + "int32": int32(r.Uint32()), TypedPrefix + "int64": int64(r.Uint64()), TypedPrefix +
			"bool": r.IntN(2) == 0, TypedPrefix + "float": r.Float64(),
		TypedPrefix + "bytes": randomBytes(r, r.IntN(20)), TypedPrefix +
			"time": time.Unix(int64(r.IntN(2_000_000_000)), 0),
		TypedPrefix + "table": amqp091.Table{"nested": []any{"text", int16(r.IntN(1000)), nil}},
	}
}
