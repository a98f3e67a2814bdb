package chaos

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// at is a time of a story, in milliseconds.
func at(ms int) time.Time { return noon.Add(time.Duration(ms) * time.Millisecond) }

func sentTo(topic, id string) *Sent {
	return &Sent{Topic: topic, ID: id, Times: 1, Published: at(-1), Confirmed: at(0), Message: amqp091.Publishing{
		Headers: amqp091.Table{uuidKey: id, "own": "header", TypedPrefix + "n": int32(7)}, Body: []byte(id),
		DeliveryMode: 2,
	}}
}

func called(s *Sent, ms, attempt int) Record {
	return Record{At: at(ms), Kind: Called, Topic: s.Topic, ID: s.ID, Attempt: attempt, Digest: digest(s.Message)}
}

func record(s *Sent, ms, attempt int, kind Kind) Record {
	return Record{At: at(ms), Kind: kind, Topic: s.Topic, ID: s.ID, Attempt: attempt}
}

func failed(s *Sent, ms, attempt int, delay time.Duration) Record {
	r := record(s, ms, attempt, Kind(retry.EventFailed))
	r.Delay, r.Wait = delay, delay

	return r
}

// failedByBroker is a failure after which the broker brings the message back.
func failedByBroker(s *Sent, ms, attempt int, delay time.Duration) Record {
	r := failed(s, ms, attempt, delay)
	r.ByBroker = true

	return r
}

func dead(s *Sent, reason retry.Reason, attempts int) Letter {
	state := wire.State{
		Count: header.CountDead, Attempts: attempts, Queue: s.Topic, Topic: s.Topic, Handler: s.Topic, Host: "host",
		Arrival: wire.NewArrival("", s.Topic, "", "", ""), Reason: reason, Error: "it fails",
		ErrorType:    "*errors.errorString",
		FirstFailure: at(1), LastFailure: at(attempts),
	}
	for n := range attempts {
		state.History = wire.Append(state.History, retry.FailedCall{Number: n + 1, At: at(n + 1), Error: "it fails"})
	}
	d := amqp091.Delivery{Headers: maps.Clone(s.Message.Headers), Body: s.Message.Body,
		DeliveryMode: s.Message.DeliveryMode}
	for k, v := range state.Headers("publish") {
		d.Headers[k] = v
	}

	return Letter{s.Topic, d}
}

// A life as it should be, of each kind.
func goodLedger() Ledger {
	ok, once, never := sentTo("quorum", "ok-1"), sentTo("classic", "once-2"), sentTo("shared", "never-3")
	dropped := sentTo("lossy", "dropped-4")

	return Ledger{
		Sent: []*Sent{ok, once, never, dropped},
		Records: []Record{
			called(ok, 1, 1), record(ok, 2, 1, Returned),
			called(once, 1, 1), failed(once, 2, 1, 150*time.Millisecond), called(once, 153, 2),
			record(once, 154, 2, Returned),
			called(never, 1, 1), failed(never, 2, 1, 250*time.Millisecond), called(never, 260, 2),
			failed(never, 261, 2, time.Second),
			called(never, 1300, 3), failed(never, 1301, 3, 0),
			called(dropped, 1, 1), record(dropped, 2, 1, Kind(retry.EventDropped)),
		},
		Letters: []Letter{dead(never, retry.ReasonExhausted, 3)},
	}
}

func TestJudge_AGoodRun(t *testing.T) {
	t.Parallel()
	verdict := goodLedger().Judge()
	assert.Empty(t, verdict.Wrong)
	assert.Equal(t, map[string]*Count{
		"quorum": {Sent: 1, Processed: 1}, "classic": {Sent: 1, Processed: 1, Retries: 1},
		"shared": {Sent: 1, DeadLettered: 1, Retries: 2},
		"lossy":  {Sent: 1, Dropped: 1},
	}, verdict.Counts)
}

// Everything that must not be is seen: a proof that cannot fail proves nothing.
func TestJudge_SeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	letter := func(key string, value any) func(*Ledger) {
		return func(l *Ledger) {
			if l.Letters[0].Message.Headers[key] = value; value == nil {
				delete(l.Letters[0].Message.Headers, key)
			}
		}
	}
	also := func(of int, event func(s *Sent) Record) func(*Ledger) {
		return func(l *Ledger) { l.Records = append(l.Records, event(l.Sent[of])) }
	}
	for name, c := range map[string]struct {
		spoil func(*Ledger)
		wrong string
	}{
		"lost at once": {func(l *Ledger) { l.Sent = append(l.Sent, sentTo("quorum", "ok-9")) }, "ok-9 is lost"},
		"lost after a failure": {func(l *Ledger) { l.Records = append(l.Records[:4:4], l.Records[6:]...) },
			"once-2 is lost"},
		"lost dead letter": {func(l *Ledger) { l.Letters = nil }, "never-3 is lost"},
		"another wait than asked for": {func(l *Ledger) {
			l.Longest = 20 * time.Second
			once := sentTo("exact", "once-6")
			l.Sent = append(l.Sent, once)
			asked := ladder.Config.RoundUp(Asked("exact", VersionA, once.ID, 1, l.Longest))
			l.Records = append(l.Records, called(once, 1, 1), failed(once, 2, 1, asked+100*time.Millisecond),
				called(once, 60_000, 2), record(once, 60_001, 2, Returned))
		}, "once-6: attempt 1 was to wait for"},
		"left": {func(l *Ledger) { l.Left = map[string]int{"quorum": 1} }, "1 messages are left in queue quorum"},
		"processed though it fails": {also(2, func(s *Sent) Record { return record(s, 1400, 3, Returned) }),
			"never-3 was processed"},
		"dropped though it is wanted": {func(l *Ledger) { l.Records[1].Kind = Kind(retry.EventDropped) },
			"ok-1 was dropped"},
		"handled twice": {also(0, func(s *Sent) Record { return called(s, 500, 1) }),
			"ok-1: attempt 1 at 12:00:00.500 was not the first"},
		"dead twice": {func(l *Ledger) { l.Letters = append(l.Letters, l.Letters[0]) }, "never-3 has 2 dead letters"},
		"too many attempts": {also(2, func(s *Sent) Record { return called(s, 9000, 5) }),
			"never-3: attempt 5, of 4 at the most"},
		"an attempt is missing": {func(l *Ledger) { l.Records[4].Attempt, l.Records[5].Attempt = 3, 3 },
			"once-2: attempt 3 without attempt 2"},
		"too early": {func(l *Ledger) { l.Records[4].At = at(140) }, "once-2: attempt 2 came 10ms too early"},
		"changed":   {func(l *Ledger) { l.Records[0].Digest = "other" }, "ok-1: the handler did not get what was sent"},
		"another topic": {func(l *Ledger) { l.Records[0].Topic = "classic" },
			"ok-1 was sent to quorum, and classic was called"},
		"nobody's call":   {func(l *Ledger) { l.Records[0].ID = "ok-77" }, `called of "ok-77", which was not sent`},
		"nobody's letter": {letter(uuidKey, "never-77"), `a dead letter in shared that was not sent: "never-77"`},
		"undecodable seen": {func(l *Ledger) {
			l.Sent[0].ID = "undecodable-1"
			l.Records[0].ID, l.Records[1].ID = "undecodable-1", "undecodable-1"
		}, "a handler saw it"},

		"letter's queue":    {func(l *Ledger) { l.Letters[0].Topic = "quorum" }, "in the dead-letter queue of quorum"},
		"letter's reason":   {letter(header.Reason, "panic"), `reason "panic"`},
		"letter's attempts": {letter(header.Attempts, "2"), "2 attempts"},
		"letter's history":  {letter(header.History, nil), "history"},
		"letter's error":    {letter(header.Error, nil), "error"},
		"letter's type":     {letter(header.ErrorType, nil), "error"},
		"letter's host":     {letter(header.Host, nil), "host"},
		"letter's handler":  {letter(header.Handler, nil), "handler"},
		"letter's times":    {letter(header.FirstFailure, nil), "no times"},
		"letter's arrival":  {letter(header.RoutingKey, nil), "arrival"},
		"letter's count":    {letter(header.Count, "3"), "count"},
		"letter's poison":   {letter(header.PoisonReason, nil), "poison keys"},
		"letter's header":   {letter("own", "another"), `header "own": sent "header", got "another"`},
		"letter's typed":    {letter(TypedPrefix+"n", int64(7)), `header "typed-n": sent 7, got 7`},
		"header too many":   {letter("foreign", "x"), `header "foreign" was not sent`},
		"letter's body":     {func(l *Ledger) { l.Letters[0].Message.Body = []byte("x") }, "body"},
		"letter's mode":     {func(l *Ledger) { l.Letters[0].Message.DeliveryMode = 1 }, "delivery mode"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ledger := goodLedger()
			c.spoil(&ledger)
			assert.Contains(t, strings.Join(ledger.Judge().Wrong, "\n"), c.wrong)
		})
	}
}

// What faults explain is counted and no more.
func TestJudge_WhatFaultsExplain(t *testing.T) {
	t.Parallel()
	fault := Fault{Name: "process killed", Start: at(100), End: at(200)}
	// again is a good run in which a message is handled once more, and what faults explain of it.
	again := func(faults ...Fault) Verdict {
		ledger := goodLedger()
		ledger.Records = append(ledger.Records, called(ledger.Sent[0], 500, 1))
		ledger.Faults = faults

		return ledger.Judge()
	}

	t.Run("a duplicate after a fault", func(t *testing.T) {
		t.Parallel()
		verdict := again(fault)
		assert.Empty(t, verdict.Wrong)
		assert.Equal(t, 1, verdict.Counts["quorum"].Again)
	})
	t.Run("not by one before it, after it, or that can be the cause of none", func(t *testing.T) {
		t.Parallel()
		for _, f := range []Fault{
			{Start: at(-500), End: at(-400)}, {Start: at(600), End: at(700)},
			{Start: at(100), End: at(200), Harmless: true},
		} {
			assert.Len(t, again(f).Wrong, 1)
		}
	})
	t.Run("the last attempt of the version with fewer retries, once more", func(t *testing.T) {
		t.Parallel()
		ledger := goodLedger()
		never := ledger.Sent[2]
		ledger.Records[len(ledger.Records)-3] = failed(never, 1301, 3, time.Second)
		ledger.Records = append(ledger.Records, called(never, 2400, 3), failed(never, 2401, 3, 0))
		assert.Empty(t, ledger.Judge().Wrong)
		ledger.Records = append(ledger.Records, called(never, 3000, 3))
		assert.Len(t, ledger.Judge().Wrong, 1, "but not twice")
	})
	t.Run("what lay in a queue that was deleted", func(t *testing.T) {
		t.Parallel()
		ledger := goodLedger()
		ledger.Records = append(ledger.Records[:4:4], ledger.Records[6:]...) // once-2 does not come back
		ledger.Faults = []Fault{{Start: at(50), End: at(60), Deleted: "classic.retry.150ms"}}
		verdict := ledger.Judge()
		require.Empty(t, verdict.Wrong)
		assert.Equal(t, 1, verdict.Counts["classic"].Removed)
		for _, other := range []Fault{
			{Start: at(50), End: at(60), Deleted: "classic.retry.400ms"},
			{Start: at(-20), End: at(-10), Deleted: "classic.retry.150ms"},
		} {
			ledger.Faults = []Fault{other}
			assert.Len(t, ledger.Judge().Wrong, 1, "another queue, or before it was there")
		}
	})
	t.Run("what was on its way through a queue of the ladder that was deleted", func(t *testing.T) {
		t.Parallel()
		once := sentTo("exact", "once-6")
		ledger := Ledger{
			Sent: []*Sent{once}, Records: []Record{called(once, 1, 1), failed(once, 2, 1, 12300*time.Millisecond)},
		}
		for _, waits := range []string{"10s", "2s", "300ms"} {
			ledger.Faults = []Fault{{Start: at(50), End: at(60), Deleted: ladder.Name() + "." + waits}}
			verdict := ledger.Judge()
			require.Empty(t, verdict.Wrong, waits)
			assert.Equal(t, 1, verdict.Counts["exact"].Removed)
		}
		ledger.Faults = []Fault{{Start: at(50), End: at(60), Deleted: ladder.Name() + ".1s"}}
		assert.Len(t, ledger.Judge().Wrong, 1, "a queue through which it does not go")
	})
	t.Run("classic retry queues when the broker dies", func(t *testing.T) {
		t.Parallel()
		lost := sentTo("lossy", "once-9")
		ledger := Ledger{
			Sent: []*Sent{lost}, Records: []Record{called(lost, 1, 1), failed(lost, 2, 1, 150*time.Millisecond)},
			Faults: []Fault{{Name: "broker killed", Start: at(100), End: at(2000)}},
		}
		verdict := ledger.Judge()
		assert.Empty(t, verdict.Wrong)
		assert.Equal(t, 1, verdict.Counts["lossy"].Due)
		ledger.Faults = nil
		assert.Len(t, ledger.Judge().Wrong, 1, "and without a fault they lose nothing")
	})
	t.Run("what was never confirmed", func(t *testing.T) {
		t.Parallel()
		ledger := goodLedger()
		never := sentTo("quorum", "ok-9")
		never.Confirmed = time.Time{}
		ledger.Sent = append(ledger.Sent, never)
		verdict := ledger.Judge()
		assert.Empty(t, verdict.Wrong)
		assert.Equal(t, 1, verdict.Counts["quorum"].Sent)
	})
}

// brokerDriven is a message that fails until the end, in a topic whose strategy is the broker's.
func brokerDriven(topic string, delay time.Duration) (*Sent, Ledger) {
	never, wait := sentTo(topic, "never-1"), int(delay.Milliseconds())

	return never, Ledger{Sent: []*Sent{never}, Records: []Record{
		called(never, 1, 1), failedByBroker(never, 2, 1, delay),
		called(never, 10+wait, 2), failedByBroker(never, 11+wait, 2, delay),
		called(never, 20+2*wait, 3), failed(never, 21+2*wait, 3, 0),
	}, Letters: []Letter{exhausted(never, 3)}}
}

// exhausted is a dead letter that the broker has brought back: of all attempts but the last it
// knows the number only.
func exhausted(s *Sent, attempts int) Letter {
	letter := dead(s, retry.ReasonExhausted, attempts)
	state := wire.State{History: []retry.FailedCall{{Number: attempts, At: at(attempts), Error: "it fails"}}}
	letter.Message.Headers[header.History] = state.Headers("publish")[header.History]
	letter.Message.Headers[header.FirstFailure] = letter.Message.Headers[header.LastFailure]

	return letter
}

// What is allowed where the broker brings messages back, and only there, and only for the reasons
// that there are.
func TestJudge_BrokerDrivenStrategies(t *testing.T) {
	t.Parallel()
	killed := []Fault{{Name: "process killed", Start: at(3), End: at(4)}}
	const delay = 250 * time.Millisecond
	delays := map[string]time.Duration{"cycle": delay, "redelivery": 0, "native": delay}
	each := func(name string, test func(t *testing.T, topic string, countsReturns bool, s *Sent, l Ledger)) {
		for topic, delay := range delays {
			t.Run(name+"/"+topic, func(t *testing.T) {
				t.Parallel()
				s, l := brokerDriven(topic, delay)
				test(t, topic, topic != "cycle", s, l)
			})
		}
	}
	allowed := func(t *testing.T, l Ledger, allowed bool, wrong string) {
		t.Helper()
		if all := l.Judge().Wrong; allowed {
			assert.Empty(t, all)
		} else {
			assert.Contains(t, strings.Join(all, "\n"), wrong)
		}
	}

	each("a good run", func(t *testing.T, topic string, _ bool, _ *Sent, l Ledger) {
		verdict := l.Judge()
		assert.Empty(t, verdict.Wrong)
		assert.Equal(t, Count{Sent: 1, DeadLettered: 1, Retries: 2}, *verdict.Counts[topic])
		assert.Len(t, verdict.Late[topic], 2)
	})
	each("no call of an attempt", func(t *testing.T, _ string, countsReturns bool, _ *Sent, l Ledger) {
		l.Records = l.Records[2:]
		allowed(t, l, false, "attempt 2 without attempt 1")
		l.Faults = []Fault{{Name: "process killed", Start: at(0), End: at(1)}} // before any call
		allowed(t, l, countsReturns, "attempt 2 without attempt 1")
	})
	each("early", func(t *testing.T, topic string, countsReturns bool, _ *Sent, l Ledger) {
		if topic == "redelivery" {
			return // it has no delays
		}
		l.Records[2].At = at(10)
		allowed(t, l, false, "attempt 2 came")
		l.Faults = killed
		allowed(t, l, countsReturns, "attempt 2 came")
	})
	each("more attempts than calls", func(t *testing.T, _ string, countsReturns bool, s *Sent, l Ledger) {
		l.Letters = []Letter{exhausted(s, 4)}
		allowed(t, l, true, "")
		l.Letters = []Letter{exhausted(s, 5)}
		allowed(t, l, false, "5 attempts, 1 in the history")
		l.Faults = killed
		allowed(t, l, countsReturns, "5 attempts, 1 in the history")
	})
	each("fewer attempts than the policy has", func(t *testing.T, _ string, _ bool, s *Sent, l Ledger) {
		l.Records, l.Faults = l.Records[:4], killed
		l.Letters = []Letter{exhausted(s, 2)}
		allowed(t, l, false, "2 attempts, 1 in the history")
		l.Letters = []Letter{exhausted(s, 3)}
		allowed(t, l, false, "its last attempt was not made")
	})
	each("an attempt that no policy has", func(t *testing.T, _ string, _ bool, s *Sent, l Ledger) {
		l.Faults = killed
		l.Records = append(l.Records, called(s, 5000, 5))
		allowed(t, l, false, "attempt 5, of 4 at the most")
	})
	each("lost", func(t *testing.T, _ string, _ bool, _ *Sent, l Ledger) {
		l.Faults, l.Letters = killed, nil
		allowed(t, l, false, "never-1 is lost")
	})
	each("lost in a queue that was deleted", func(t *testing.T, topic string, countsReturns bool, _ *Sent, l Ledger) {
		l.Letters, l.Records = nil, l.Records[:2]
		l.Faults = []Fault{{Start: at(5), End: at(6), Deleted: retryQueue(topic, delay)}}
		allowed(t, l, !countsReturns, "never-1 is lost")
	})
	t.Run("elsewhere", func(t *testing.T) {
		t.Parallel()
		l := goodLedger()
		l.Faults = killed
		l.Records[4].At = at(140)
		allowed(t, l, false, "once-2: attempt 2 came 10ms too early")
		l = goodLedger()
		l.Letters[0] = exhausted(l.Sent[2], 3)
		allowed(t, l, false, "3 attempts, 1 in the history")
	})
}

// A broker has the strategies of its version, and versions of a service differ in no argument of a
// main queue.
func TestTopics_OfStrategies(t *testing.T) {
	t.Parallel()
	for broker, want := range map[string]bool{"3.10.8": false, "4.0.5": false, "4.3.6": true} {
		assert.Equal(t, want, slices.ContainsFunc(TopicsOn(broker), func(t Topic) bool { return t.Name == "native" }))
		for _, topic := range TopicsOn(broker) {
			var arguments []amqp091.Table
			for _, v := range []Version{VersionA, VersionB} {
				policy := Policies(v, topic.Main, broker).For(topic.Name)
				require.NoError(t, policy.Validate(), topic.Name)
				assert.Equal(t, topic.Strategy.ByBroker(), policy.Strategy.ByBroker(), topic.Name)
				plan, err := topology.New(topic.Name, policy, topology.Names{})
				require.NoError(t, err, topic.Name)
				arguments = append(arguments, plan.MainArguments)
			}
			assert.Equal(t, arguments[0], arguments[1], topic.Name)
		}
	}
}

// Handlers ask for waits of all magnitudes, the same each time, and in no version that has retry
// queues.
func TestFates_WhatHandlersAskFor(t *testing.T) {
	t.Parallel()
	const longest = 20 * time.Second
	below, policy := map[time.Duration]int{}, 0
	for n := range 3000 {
		id := "once-" + strconv.Itoa(n)
		asked := Asked("exact", VersionA, id, 1, longest)
		require.Equal(t, asked, Asked("exact", VersionA, id, 1, longest))
		assert.Zero(t, Asked("quorum", VersionA, id, 1, longest))
		assert.Zero(t, Asked("mixed", VersionA, id, 1, longest))
		if asked == 0 {
			policy++
			continue
		}
		require.GreaterOrEqual(t, asked, leastAsked)
		require.LessOrEqual(t, asked, longest)
		for _, bound := range []time.Duration{time.Second, 10 * time.Second} {
			if asked < bound {
				below[bound]++
			}
		}
	}
	assert.InDelta(t, 1000, policy, 155, "six times the standard deviation")
	assert.InDelta(t, 2000*math.Log(10)/math.Log(200), below[time.Second], 150, "six times the standard deviation")
	assert.InDelta(t, 2000*math.Log(100)/math.Log(200), below[10*time.Second], 150, "more than that")
}

// What a killed process has written is read, but for the line in the middle of which it died.
func TestReader_LeavesHalfALine(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/ledger"
	book, err := OpenBook(path, "worker-1.1")
	require.NoError(t, err)
	reader := &Reader{Path: path}
	next := func(written string) Record {
		_, err := book.file.WriteString(written)
		require.NoError(t, err)
		records, err := reader.Read()
		require.NoError(t, err)
		require.Len(t, records, 1)

		return records[0]
	}
	book.Write(Record{Kind: Called, ID: "a"})
	assert.Equal(t, "worker-1.1", next(`{"k":"called","id":`).Process)
	assert.Equal(t, "b", next("\"b\"}\n").ID)
}

func TestFates_AreOneHundred(t *testing.T) {
	t.Parallel()
	counted := map[fate.Fate]int{}
	for n := range 100 {
		counted[pick(n)]++
	}
	assert.Len(t, counted, len(fates))
	assert.Panics(t, func() { pick(100) })
}
