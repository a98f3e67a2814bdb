package tests

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// What a publisher can do who wants to do harm: to loop for ever, to stop a consumer, to reach a
// queue of its choice.

func alwaysFails(*message.Message) error { return errFate }

func nested(depth int, value any) any {
	for i := range depth {
		if i%2 == 0 {
			value = []any{value}
		} else {
			value = amqp091.Table{"k": value}
		}
	}

	return value
}

func manyHeaders(n int) amqp091.Table {
	headers := amqp091.Table{}
	for i := range n {
		headers[fmt.Sprintf("%04x", i)] = nil
	}

	return headers
}

// framed is a message whose content header has a frame of just so many bytes.
func framed(t *testing.T, id string, bytes int) amqp091.Publishing {
	t.Helper()
	// Of the frame 8, of the content header 14, of the table 4, the delivery mode 1; an entry has 1
	// + its key + 5 + its text.
	p := with(id, amqp091.Table{"big": ""})
	size := 8 + 14 + 4 + 1
	for key, value := range p.Headers {
		text, _ := value.(string)
		size += 1 + len(key) + 5 + len(text)
	}
	require.GreaterOrEqual(t, bytes, size)
	p.Headers["big"] = strings.Repeat("b", bytes-size)

	return p
}

// RabbitMQ hands on what amqp091-go cannot read, and gives up its connection for. No handler sees
// it, and it is a dead letter without the headers that cannot be read.
func TestHostile_UnreadableHeaders(t *testing.T) {
	t.Parallel()

	const frame = 131072
	eachQueueType(t, func(t *testing.T, queueType string) {
		network := newProxy(t, brokertest.URI(t))
		svc := start(t, setup{URI: network.URI, QueueType: queueType, Prefetch: 20,
			Handler: func(msg *message.Message) error {
				if strings.HasPrefix(msg.UUID, "healthy") {
					return nil
				}

				return errFate
			}})
		unreadable := map[string]string{"deep": "bad", "bottomless": "bad", "wide": "bad", "wide table": "bad",
			"many": "", "a byte too much": "big", "as large as can be published": "big"}
		readable := map[string]string{"as deep as can be": "exhausted", "as wide as can be": "exhausted",
			"many, but readable": "too-large"}
		messages := []amqp091.Publishing{
			with("deep", amqp091.Table{"bad": nested(33, "x"), "good": int64(1)}),
			with("bottomless", amqp091.Table{"bad": nested(5000, "x"), "good": int64(1)}),
			with("wide", amqp091.Table{"bad": make([]any, 8193), "good": int64(1)}),
			with("wide table", amqp091.Table{"bad": []any{manyHeaders(8193)}, "good": int64(1)}),
			with("many", manyHeaders(9000)),
			framed(t, "a byte too much", frame+1), framed(t, "as large as can be published", frame+8),
			with("as deep as can be", amqp091.Table{"bad": nested(32, "x"), "good": int64(1)}),
			with("as wide as can be", amqp091.Table{"bad": make([]any, 8192), "good": int64(1)}),
			with("many, but readable", manyHeaders(8190)),
		}
		for i, m := range messages {
			svc.publish(fmt.Sprint("healthy-", i))
			svc.Broker.Publish(svc.Queue, m)
		}

		letters := svc.Broker.Take(svc.dlq(), len(messages))
		named := map[string]int{}
		for _, d := range letters {
			id := string(d.Body)
			named[id]++
			requireReadable(t, d)
			if removed, bad := unreadable[id]; bad {
				assert.Equal(t, "too-large", rabbit.Text(d, header.Reason), id)
				assert.Contains(t, rabbit.Text(d, header.Error), "amqp091-go cannot read", id)
				assert.Equal(t, "0", rabbit.Text(d, header.Attempts), "no handler saw %q", id)
				assert.True(t, strings.HasPrefix(rabbit.Text(d, header.Removed), removed), "%s: %s", id,
					rabbit.Text(d, header.Removed))
				assert.NotContains(t, d.Headers, "bad", id)
				if removed == "bad" {
					assert.Equal(t, int64(1), d.Headers["good"], "the others stay")
				}
			} else {
				assert.Equal(t, readable[id], rabbit.Text(d, header.Reason), id)
			}
		}
		assert.Len(t, named, len(messages))
		await.Until(t, func() bool { return svc.Calls.ids()["healthy-9"] == 1 }, "the healthy ones between them")
		calls := svc.Calls.ids()
		for i := range messages {
			assert.Equal(t, 1, calls[fmt.Sprint("healthy-", i)])
		}
		assert.Equal(t, map[string]int{"as deep as can be": 2, "as wide as can be": 2, "many, but readable": 1},
			except(calls, "healthy"))
		assert.Equal(t, 1, network.dialled(subscriber), "the connection was never lost")
		assert.Equal(t, 1, network.dialled(forwarder))
	})
}

func except(calls map[string]int, prefix string) map[string]int {
	maps.DeleteFunc(calls, func(id string, _ int) bool { return strings.HasPrefix(id, prefix) })
	return calls
}

// What cannot be read lies in a dead-letter queue, put there by somebody: its handler gets what is
// left of it.
func TestHostile_UnreadableDeadLetters(t *testing.T) {
	t.Parallel()

	network := newProxy(t, brokertest.URI(t))
	a := &archive{}
	svc := start(t, setup{URI: network.URI, Route: func(svc *service) { svc.file(a) }})
	svc.Broker.Publish(svc.dlq(), with("deep", amqp091.Table{"bad": nested(99, "x")}), framed(t, "large", 131080),
		with("plain", nil))

	await.Until(t, func() bool { _, _, ok := a.get("plain"); return ok }, "handled")
	deep, body, _ := a.get("deep")
	assert.Equal(t, retry.DeadLetter{Queue: svc.Queue, Removed: "bad"}, deep)
	assert.Equal(t, "deep", body)
	large, _, _ := a.get("large")
	assert.Equal(t, "big", large.Removed)
	assert.Equal(t, 1, network.dialled(letters))
}

// Whatever the size of its headers, byte by byte at the edges: a message ends whole, or as too
// large without its largest header, and no connection is lost.
func TestHostile_EveryHeaderSize(t *testing.T) {
	t.Parallel()

	const largest = 131080 // that RabbitMQ takes from a publisher
	eachQueueType(t, func(t *testing.T, queueType string) {
		network := newProxy(t, brokertest.URI(t))
		svc := start(t, setup{URI: network.URI, QueueType: queueType, Tiers: true, Delays: ms(20), Prefetch: 20,
			Handler: alwaysFails})

		whole := map[int]bool{} // by size
		sent := 0
		sweep := func(sizes ...int) {
			t.Helper()
			messages := map[string]amqp091.Publishing{}
			for _, size := range sizes {
				id := fmt.Sprintf("%d-%d", sent, size)
				messages[id] = framed(t, id, size)
				sent++
			}
			svc.Broker.Publish(svc.Queue, slices.Collect(maps.Values(messages))...)
			lost := func() bool { return network.dialled(subscriber) > 1 || network.dialled(forwarder) > 1 }
			await.Until(t, func() bool { return len(svc.Letters()) >= sent || lost() }, "all end")
			require.False(t, lost(), "no connection is lost")

			// A few at a time: of more than 32 acknowledgements at once a quorum queue may lose
			// some with the channel.
			for len(messages) > 0 {
				some := svc.Broker.Drain(svc.dlq())
				require.NotEmpty(t, some, "%d are missing", len(messages))
				for _, d := range some {
					id := string(d.Body)
					m, wanted := messages[id]
					if !wanted && d.Redelivered {
						continue
					}
					require.True(t, wanted, "a duplicate of %s", id)
					delete(messages, id)
					var size int
					_, err := fmt.Sscanf(id[strings.Index(id, "-")+1:], "%d", &size)
					require.NoError(t, err)
					calls := svc.Calls.ids()[id]
					if whole[size] = rabbit.Text(d, header.Reason) == "exhausted"; whole[size] {
						require.IsType(t, "", d.Headers["big"])
						require.Equal(t, sha256.Sum256([]byte(m.Headers["big"].(string))),
							sha256.Sum256([]byte(rabbit.Text(d, "big"))), "it is whole")
						require.Equal(t, 2, calls)

						continue
					}
					require.Equal(t, "too-large", rabbit.Text(d, header.Reason))
					require.NotContains(t, d.Headers, "big")
					require.Equal(t, "big", rabbit.Text(d, header.Removed))
					require.LessOrEqual(t, calls, 2)
				}
			}
		}
		edge := func() (low, high int) { // the largest that is whole, and the smallest that is not
			high = math.MaxInt
			for size, ok := range whole {
				if ok {
					low = max(low, size)
				} else {
					high = min(high, size)
				}
			}
			require.Less(t, low, high, "there is one edge")

			return low, high
		}

		var sizes []int
		for size := largest - 12; size <= largest; size++ {
			sizes = append(sizes, size)
		}
		for size := largest - 4000; size < largest-12; size += 500 {
			sizes = append(sizes, size)
		}
		sweep(sizes...)
		for low, high := edge(); high-low > 12; low, high = edge() {
			sweep(low+(high-low)/3, low+(high-low)*2/3)
		}
		low, high := edge()
		sizes = nil
		for size := low - 4; size <= high+4; size++ {
			sizes = append(sizes, size)
		}
		sweep(sizes...)
		low, high = edge()
		assert.Equal(t, low+1, high, "byte by byte")
		assert.Greater(t, low, largest-2500, "there is room for what is needed")
		t.Logf("whole up to %d bytes", low)
	})
}

// Counts of every kind from a foreign publisher: none gives a message more attempts than the
// policy, and none takes them all away.
func TestHostile_Counts(t *testing.T) {
	t.Parallel()

	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		svc := run(t, setup{Delays: ms(50, 60), Prefetch: 50, Handler: alwaysFails})

		all := []int{1, 2, 3}
		counts := map[string]struct { // RabbitMQ takes neither NaN nor infinity
			count    any
			attempts []int
		}{
			"1": {"1", all}, "2": {"2", all}, // not without the broker's word
			"-1": {"-1", all}, // a replay
			"0":  {"0", all}, "-7": {"-7", all}, "-2": {"-2", all}, "empty": {"", all}, "word": {"one", all},
			"NaN": {"NaN", all}, "float text": {"1.5", all},
			"exponent": {"1e9", all}, "blank": {" 1", all}, "hex": {"0x1", all}, "arabic": {"٣", all},
			"NUL": {"1\x00", all}, "invalid": {"\xff", all},
			"too small": {"-99999999999999999999", all}, "minus zero": {"-0", all},
			"3": {"3", []int{3}}, "10^9": {"1000000000", []int{3}}, "too large": {"99999999999999999999", []int{3}},
			"007": {"007", []int{3}}, "+1": {"+1", []int{2, 3}},
			"int8": {int8(1), []int{2, 3}}, "int16": {int16(2), []int{3}}, "int32": {int32(-1), all},
			"int64":     {int64(math.MaxInt64), []int{3}},
			"int64 min": {int64(math.MinInt64), all}, "uint8": {uint8(255), []int{3}},
			"uint16": {uint16(1), []int{2, 3}}, "uint32": {uint32(math.MaxUint32), []int{3}},
			"float32": {float32(1), all}, "float64": {1e300, all}, "bool": {true, all}, "void": {nil, all},
			"time": {time.Unix(1, 0), all}, "decimal": {amqp091.Decimal{Value: 1}, all}, "bytes": {[]byte("2"), all},
			"list":  {[]any{"2"}, all},
			"table": {amqp091.Table{"n": int64(2)}, all}, "deep": {nested(32, "2"), all},
		}
		for id, test := range counts {
			svc.Broker.Publish(svc.Queue, with("own "+id, ours(svc.Queue, test.count)),
				with("foreign "+id, ours("another", test.count)))
		}
		svc.Broker.Publish(svc.Queue, with("none", nil))

		letters := reasons(svc.Broker.Take(svc.dlq(), 2*len(counts)+1))
		for id, test := range counts {
			assert.Equal(t, test.attempts, svc.Calls.attempts("own "+id), "%s", id)
			assert.Equal(t, all, svc.Calls.attempts("foreign "+id), "%s", id)
			assert.Equal(t, "exhausted", letters["own "+id])
		}
		assert.Equal(t, all, svc.Calls.attempts("none"))
		await.Until(t, func() bool { return len(svc.Letters()) > 2*len(counts) }, "all are confirmed")
		await.Stays(t, 300*time.Millisecond, func() bool { return len(svc.Letters()) == 2*len(counts)+1 }, "no more")
	})
}

// A publisher's x-delivery-count is not the broker's: nothing is dead-lettered for it before its
// handler was called.
func TestHostile_ForgedDeliveryCount(t *testing.T) {
	t.Parallel()

	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		eachQueueType(t, func(t *testing.T, queueType string) {
			c := setup{QueueType: queueType, Handler: alwaysFails}
			c.Options.Policies = config.Policies{Default: config.Policy{Mode: config.ModeDeadLetter}}
			svc := run(t, c)
			for id, count := range map[string]any{"many": int64(math.MaxInt64), "20": int32(20), "text": "99"} {
				svc.Broker.Publish(svc.Queue,
					with(id, amqp091.Table{"x-delivery-count": count, "x-acquired-count": count}))
			}
			for id, reason := range reasons(svc.Broker.Take(svc.dlq(), 3)) {
				assert.Equal(t, "exhausted", reason, id)
			}
			assert.Equal(t, map[string]int{"many": 1, "20": 1, "text": 1}, svc.Calls.ids())
		})
	})
}

// No header sends a message where its publisher wants it: what a copy is published to comes from
// the plan alone.
func TestHostile_Destinations(t *testing.T) {
	t.Parallel()

	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		for name, strategy := range map[string]config.Strategy{"own": "", "shared": config.StrategyShared} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()

				uri := brokertest.URI(t)
				policies := config.Policies{Default: config.Policy{Delays: ms(50), Strategy: strategy}}
				options := func(c *setup) {
					c.Options.Policies = policies
					c.Options.Names.Shared = uniqueName("retry")
				}
				other := setup{URI: uri, Handler: succeed}
				options(&other)
				victim := run(t, other)
				mine := setup{URI: uri, Handler: alwaysFails, Prefetch: 30}
				options(&mine)
				mine.Options.Names.Shared = other.Options.Names.Shared // both take part in the same queues
				svc := run(t, mine)
				broker := svc.Broker

				canary, exchange := svc.Queue+".retry.1ms", svc.Queue+".retry.canary" // as if they were ours
				broker.Declare(canary, nil)
				bound(t, broker, exchange, "fanout", canary, "")

				forged := map[string]amqp091.Table{}
				for _, target := range []string{canary, victim.Queue, victim.dlq(),
					victim.retryQueue(50 * time.Millisecond)} {
					for count, death := range map[string]string{"0": "", "-1": "",
						"1": svc.retryQueue(50 * time.Millisecond), "7": target} {
						h := amqp091.Table{
							header.Version: "1", header.Queue: svc.Queue, header.Count: count, header.Delay: "50ms",
							header.Exchange: exchange, header.RoutingKey: target, header.CC: `["` + target + `"]`,
							header.Topic:  target,
							header.Retire: target, header.Prefix + "to": target, "x-cc": []any{target},
							"cc": []any{target}, "BCC": []any{},
							"x-exchange": exchange, "x-routing-key": target, "x-to": "/queues/" + target,
							"x-basic-delivery-mode":  uint8(1),
							"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": target, "x-opt-to": target,
							"x-match": "any",
							"x-delay": int32(1), "x-message-ttl": int64(1), "x-first-death-queue": target,
							"x-last-death-exchange": exchange,
						}
						if death != "" {
							h["x-death"] = []any{amqp091.Table{"queue": death, "exchange": exchange,
								"reason": "expired", "count": int64(1), "routing-keys": []any{target}}}
						}
						forged[fmt.Sprint(count, " to ", target)] = h
						theirs := maps.Clone(h)
						theirs[header.Queue] = target
						forged[fmt.Sprint(count, " of ", target)] = theirs
					}
				}
				for id, headers := range forged {
					p := with(id, headers)
					p.ReplyTo, p.UserId = canary, "guest"
					broker.Publish(svc.Queue, p)
				}

				letters := reasons(broker.Take(svc.dlq(), len(forged)))
				assert.Len(t, letters, len(forged), "each is there once")
				for id := range forged {
					assert.LessOrEqual(t, svc.Calls.ids()[id], 2, id)
					assert.Positive(t, svc.Calls.ids()[id], id)
				}
				await.Until(t, func() bool { return len(svc.Letters()) >= len(forged) }, "all are confirmed")
				await.Stays(t, 300*time.Millisecond, func() bool {
					return len(svc.Letters()) == len(forged) && broker.Depth(svc.Queue) == 0
				}, "no more of them")
				assert.Zero(t, broker.Depth(canary), "the canary lives")
				assert.Zero(t, victim.Calls.count(), "and so does the other service")
				assert.Zero(t, broker.Depth(victim.dlq()))
				assert.Zero(t, broker.Depth(victim.Queue))
			})
		}
	})
}

// Texts of ours that are forged, and properties as no honest publisher sets them: all is kept that
// is the publisher's, all that is ours is readable and bounded, and the message has its attempts.
func TestHostile_TextsAndProperties(t *testing.T) {
	t.Parallel()

	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		svc := run(t, setup{Delays: ms(50), Prefetch: 50, Handler: alwaysFails})

		const kib100 = 100 << 10
		forged := map[string]amqp091.Publishing{}
		for name, text := range map[string]string{
			"100 KiB": strings.Repeat("x", kib100), "invalid": strings.Repeat("caf\xe9", 2000),
			"NUL": strings.Repeat("\x00", 3000), "escape": "\x1b[31m\r\n\u2028<script>",
			"empty": "", "no JSON": `[{"n":1},`, "wrong JSON": `{"n":[1]}`, "long JSON": "[" +
				strings.Repeat("{},", 900) + "{}]", "deep JSON": strings.Repeat("[", 5000),
			"numbers": `[{"n":1e999},{"n":-1,"at":"x","error":"\ud800"}]`, "future": "9999-12-31T23:59:59.999Z",
			"past": "0001-01-01T00:00:00.000Z",
		} {
			h := ours(svc.Queue, "0")
			for _, key := range []string{
				header.Error, header.ErrorType, header.History, header.Topic, header.Handler, header.Host,
				header.Reason, header.Attempts, header.Replays,
			} {
				if h[key] = text; len(text) > kib100/10 && key != header.Error { // a frame has room for one
					h[key] = text[:1000]
				}
			}
			h[header.Since], h[header.Deadline], h[header.NotBefore] = text[:min(len(text), 99)],
				text[:min(len(text), 99)], text[:min(len(text), 99)]
			forged["text "+name] = with("text "+name, h)
		}
		property := func(name string, set func(*amqp091.Publishing)) {
			p := with(name, amqp091.Table{"kept": "\xff\x00"})
			set(&p)
			forged[name] = p
		}
		property("priority", func(p *amqp091.Publishing) { p.Priority = 255 })
		property("far future", func(p *amqp091.Publishing) { p.Timestamp = time.Unix(math.MaxInt64, 0) })
		property("milliseconds", func(p *amqp091.Publishing) { p.Timestamp = time.Unix(time.Now().UnixMilli(), 0) })
		property("before 1970", func(p *amqp091.Publishing) { p.Timestamp = time.Unix(-1, 0) })
		property("no body", func(p *amqp091.Publishing) { p.Body = nil })
		property("names", func(p *amqp091.Publishing) {
			long := strings.Repeat("\xff", 255)
			p.ContentEncoding, p.ContentType, p.Type, p.AppId, p.CorrelationId, p.MessageId, p.ReplyTo = long, long,
				long, long, long, long, long
		})
		property("control characters", func(p *amqp091.Publishing) {
			p.ContentEncoding, p.ContentType, p.Type, p.AppId = "gzip\r\n", "\x00", "\x1b[2J", "../../etc"
		})
		property("reply to the retry exchange", func(p *amqp091.Publishing) { p.ReplyTo = svc.exchange() })
		for _, p := range forged {
			svc.Broker.Publish(svc.Queue, p)
		}
		odd := with("mode", nil)
		odd.DeliveryMode = 7 // there is 1 and 2
		accepted := svc.Broker.TryPublish("", svc.Queue, odd)
		if accepted == nil {
			forged["mode"] = odd
		}
		t.Logf("a delivery mode of 7: %v", accepted)

		for _, d := range svc.Broker.Take(svc.dlq(), len(forged)) {
			id := rabbit.UUID(d)
			sent, ok := forged[id]
			require.True(t, ok, "%q", id)
			requireReadable(t, d)
			assert.Equal(t, "exhausted", rabbit.Text(d, header.Reason), id)
			assert.Equal(t, errFate.Error(), rabbit.Text(d, header.Error), id)
			assert.Equal(t, []int{1, 2}, svc.Calls.attempts(id), id)
			assert.True(t, bytes.Equal(sent.Body, d.Body), id)
			want := sent
			want.Headers, want.Body, want.Timestamp = nil, nil, want.Timestamp.UTC()
			assert.Equal(t, want, properties(d), id)
			assert.Equal(t, sent.Headers["kept"], d.Headers["kept"], id)
			delete(forged, id)
		}
		assert.Empty(t, forged)
		assert.Empty(t, svc.Logs.with("Connection to RabbitMQ lost"))
	})
}

// The broker's largest messages go through retries and into the dead-letter queue whole, and leave
// nothing behind in memory.
func TestHostile_LargestBodies(t *testing.T) {
	t.Parallel()

	uri := brokertest.URI(t)
	size := 16<<20 - 4096 // the limit since 4.0 is 16 MiB
	if !newRabbit(t, uri).AtLeast(4, 0) {
		size = 48 << 20 // of 128 MiB
	}
	if testing.Short() { // with the race detector it takes its time
		size = 8 << 20
	}

	body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	want := sha256.Sum256(body)
	var mu sync.Mutex
	intact := 0
	c := setup{Delays: ms(50), URI: uri, QueueType: "quorum", Prefetch: 2, Handler: func(msg *message.Message) error {
		if sha256.Sum256(msg.Payload) == want {
			mu.Lock()
			intact++
			mu.Unlock()
		}
		clear(msg.Payload)

		return errFate
	}}
	c.Options.HoldWarning = 20 * time.Second
	svc := start(t, c)
	svc.Broker.Publish(svc.Queue, rabbit.Message("large", string(body)))

	await.Until(t, func() bool { return svc.Broker.Depth(svc.dlq()) == 1 }, "it is dead")
	letters := svc.Broker.Drain(svc.dlq())
	require.Len(t, letters, 1)
	dead := letters[0]
	assert.Equal(t, "exhausted", rabbit.Text(dead, header.Reason))
	assert.Equal(t, want, sha256.Sum256(dead.Body))
	mu.Lock()
	assert.Equal(t, 2, intact)
	mu.Unlock()
	dead.Body, letters[0].Body = nil, nil
	await.Until(t, func() bool {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)

		return m.HeapAlloc < 512<<20 // of all tests that run now
	}, "memory")
}

// What somebody publishes straight into what the plan has declared: it comes back as what it is, or
// it stays where it was put.
func TestHostile_IntoTheRetryTopology(t *testing.T) {
	t.Parallel()

	bothSubscribers(t, func(t *testing.T, run func(*testing.T, setup) *service) {
		const delay = 60 * time.Millisecond
		svc := run(t, setup{Delays: ms(60, 70), Tiers: true, Prefetch: 20, Handler: alwaysFails})
		waiting, broker := svc.retryQueue(delay), svc.Broker
		headers := func(count any) amqp091.Table {
			h := ours(svc.Queue, count)
			h[header.Delay] = "60ms"

			return h
		}

		broker.Publish(waiting,
			with("queue, bare", nil), with("queue, 1", headers("1")), with("queue, 2", headers("2")),
			with("queue, -1", headers("-1")),
			with("queue, 99", headers("99")), with("queue, another's", ours("another", "2")),
			with("queue, a list", headers([]any{"1"})))
		only := amqp091.Table{header.Delay: "60ms"}
		both := amqp091.Table{header.Delay: "60ms", header.Count: "-1"}
		broker.PublishTo(svc.exchange(), "nowhere", with("exchange, delay", only), with("exchange, both", both),
			with("exchange, 1", headers("1")))
		broker.Publish(svc.dlq(), with("dead, bare", nil), with("dead, 1", headers("1")))

		letters := broker.Take(svc.dlq(), 13) // one of them twice: its headers match both bindings
		found := map[string][]string{}
		for _, d := range letters {
			found[rabbit.UUID(d)] = append(found[rabbit.UUID(d)], rabbit.Text(d, header.Reason))
		}
		assert.Len(t, found, 12)
		assert.ElementsMatch(t, []string{"", "exhausted"}, found["exchange, both"])
		assert.Equal(t, []string{""}, found["dead, bare"], "it lies there as it is")
		assert.Equal(t, []string{""}, found["dead, 1"])
		all := []int{1, 2, 3}
		for id, attempts := range map[string][]int{
			"queue, bare": all, "queue, 1": {2, 3}, "queue, 2": {3}, "queue, -1": all, "queue, 99": {3},
			"queue, another's": all, "queue, a list": all,
			"exchange, delay": all, "exchange, both": all, "exchange, 1": {2, 3}, "dead, bare": nil, "dead, 1": nil,
		} {
			assert.Equal(t, attempts, svc.Calls.attempts(id), id)
		}
		await.Stays(t, 300*time.Millisecond, func() bool {
			return broker.Depth(svc.dlq()) == 0 && broker.Depth(waiting) == 0
		}, "nothing loops")
	})
}

// A policy's maximum age holds whatever the headers say, and forged ages alone kill nothing.
func TestHostile_Ages(t *testing.T) {
	t.Parallel()

	c := setup{Tiers: true, Handler: func(*message.Message) error { return retry.Postpone(0) }}
	// A handler may be called late on a busy machine, but not after the maximum age.
	c.Options.Policies = config.Policies{Default: config.Policy{Delays: ms(400), MaxAge: 2500 * time.Millisecond}}
	svc := start(t, c)
	began := time.Now()
	ids := map[string]bool{}
	for _, at := range []string{"9999-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z", "0001-01-01T00:00:00.000Z", "x",
		""} {
		for _, count := range []string{"0", "-1", "5"} {
			id := count + " at " + at
			ids[id] = true
			h := ours(svc.Queue, count)
			for _, key := range []string{header.Since, header.Deadline, header.LastFailure, header.FirstFailure,
				header.NotBefore} {
				h[key] = at
			}
			h[header.Exchange], h[header.Expiration] = "", "99999999999999999999"
			svc.Broker.Publish(svc.Queue, with(id, h))
		}
	}
	letters := reasons(svc.Broker.Take(svc.dlq(), len(ids)))
	assert.GreaterOrEqual(t, time.Since(began), 2*time.Second)
	for id := range ids {
		assert.Equal(t, "expired", letters[id], id)
		assert.Positive(t, svc.Calls.ids()[id], "its handler was called: %s", id)
		assert.LessOrEqual(t, svc.Calls.ids()[id], 9, id)
	}
}
