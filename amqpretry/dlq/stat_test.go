package dlq

import (
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/retry"
)

func TestStat(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	deadLetter := func(reason retry.Reason, topic, handler, errorType string, last time.Time, replays int, body,
		unreadable string) *DeadLetter {
		return &DeadLetter{
			DeadLetter: retry.DeadLetter{
				Reason: reason, Topic: topic, Handler: handler, ErrorType: errorType, LastFailure: last,
				Replays: replays,
			},
			Message: amqp091.Publishing{Body: []byte(body)}, Unreadable: unreadable,
		}
	}

	s := Stat{Ready: 9, Seen: 8}
	for _, l := range []*DeadLetter{
		deadLetter("exhausted", "orders", "ship", "*a.Error", at, 0, "12345", ""),
		deadLetter("exhausted", "orders", "ship", "*a.Error", at, 0, "", ""),
		deadLetter("permanent", "orders", "bill", "*a.Error", at.Add(time.Hour), 2, "1", ""),
		deadLetter("exhausted", "", "ship", "*b.Error", at.Add(-time.Hour), 1, "", ""),
		deadLetter("", "", "", "", time.Time{}, 0, "", "x"),
	} {
		if l.Replays == 2 {
			l.Message.Headers = amqp091.Table{header.Replay: "run"}
		}
		s.add(l)
	}

	assert.Equal(t, Stat{
		Ready: 9, Seen: 8, Matched: 5, Bytes: 6, Oldest: at.Add(-time.Hour), Newest: at.Add(time.Hour), Untimed: 1,
		Replayed: 2, Unreadable: 1,
		ByReason:    Counts{ByName: map[string]int{"exhausted": 3, "permanent": 1, "": 1}},
		ByTopic:     Counts{ByName: map[string]int{"orders": 3, "": 2}},
		ByHandler:   Counts{ByName: map[string]int{"ship": 3, "bill": 1, "": 1}},
		ByErrorType: Counts{ByName: map[string]int{"*a.Error": 3, "*b.Error": 1, "": 1}},
		ByFingerprint: Counts{ByName: map[string]int{
			"7b543f1f084e": 2, "7586de070bad": 1, "98c70a3f71e8": 1, "96a296d224f2": 1,
		}},
		ByReplay: Counts{ByName: map[string]int{"run": 1}},
		Fingerprints: map[string]Fingerprint{
			"7b543f1f084e": {ID: "7b543f1f084e", ErrorType: "*a.Error", Handler: "ship", Pattern: "exhausted"},
			"7586de070bad": {ID: "7586de070bad", ErrorType: "*a.Error", Handler: "bill", Pattern: "permanent"},
			"98c70a3f71e8": {ID: "98c70a3f71e8", ErrorType: "*b.Error", Handler: "ship", Pattern: "exhausted"},
			"96a296d224f2": {ID: "96a296d224f2"},
		},
	}, s)

	text, err := json.Marshal(s)
	require.NoError(t, err)
	assert.JSONEq(t,
		`{"ready":9,"seen":8,"hidden":0, "consumers": 0,"matched":5,"bytes":6,"oldest":"2026-01-02T02:04:05Z","newest":"2026-01-02T04:04:05Z","untimed":1,`+
			`"replayed":2,"unreadable":1,"by_reason":{"by_name":{"":1,"exhausted":3,"permanent":1},"others":0},`+
			`"by_topic":{"by_name":{"":2,"orders":3},"others":0},"by_handler":{"by_name":{"":1,"bill":1,"ship":3},"others":0},`+
			`"by_error_type":{"by_name":{"":1,"*a.Error":3,"*b.Error":1},"others":0},`+
			`"by_fingerprint":{"by_name":{"7586de070bad":1,"7b543f1f084e":2,"96a296d224f2":1,"98c70a3f71e8":1},"others":0},`+
			`"by_replay":{"by_name":{"run":1},"others":0},"fingerprints":{"7586de070bad":{"id":"7586de070bad","error_type":"*a.Error","handler":"bill","pattern":"permanent"},`+
			`"7b543f1f084e":{"id":"7b543f1f084e","error_type":"*a.Error","handler":"ship","pattern":"exhausted"},`+
			`"96a296d224f2":{"id":"96a296d224f2","error_type":"","handler":"","pattern":""},`+
			`"98c70a3f71e8":{"id":"98c70a3f71e8","error_type":"*b.Error","handler":"ship","pattern":"exhausted"}}}`, string(text))
}

func TestStatOfNothing(t *testing.T) {
	text, err := json.Marshal(Stat{})
	require.NoError(t, err)
	assert.JSONEq(t, `{"ready":0,"seen":0,"hidden":0, "consumers": 0,"matched":0,"bytes":0,"untimed":0,"replayed":0,"unreadable":0,`+
		`"by_reason":{"by_name":{},"others":0},"by_topic":{"by_name":{},"others":0},"by_handler":{"by_name":{},"others":0},`+
		`"by_error_type":{"by_name":{},"others":0},"by_fingerprint":{"by_name":{},"others":0},`+
		`"by_replay":{"by_name":{},"others":0}}`, string(text))
}

// Whoever makes up names fills no memory, and hides nothing: all are counted.
func TestCountsAreHonest(t *testing.T) {
	var s Stat
	for round := range 2 {
		for i := range maxNames + 5 {
			s.add(&DeadLetter{DeadLetter: retry.DeadLetter{Topic: strconv.Itoa(i)}})
		}
		assert.Len(t, s.ByTopic.ByName, maxNames)
		assert.Equal(t, 5*(round+1), s.ByTopic.Others)
	}

	s = Stat{}
	for i := range maxNames + 5 {
		s.add(&DeadLetter{DeadLetter: retry.DeadLetter{Handler: strconv.Itoa(i)}})
	}
	assert.Len(t, s.Fingerprints, maxNames)
	assert.Equal(t, 5, s.ByFingerprint.Others)
}

func TestCountsAddUp(t *testing.T) {
	var s Stat
	for range 2 {
		for i := range maxNames + 5 {
			s.add(&DeadLetter{DeadLetter: retry.DeadLetter{Topic: strconv.Itoa(i)}})
		}
	}
	sum := s.ByTopic.Others
	for _, n := range s.ByTopic.ByName {
		sum += n
	}
	assert.Equal(t, s.Matched, sum)
	assert.Equal(t, 2, s.ByTopic.ByName["0"], "who is known is counted on")
}

func TestCountsSorted(t *testing.T) {
	c := Counts{ByName: map[string]int{"b": 2, "a": 2, "": 1, "c": 3}, Others: 9}
	assert.Equal(t, []Count{{"c", 3}, {"a", 2}, {"b", 2}, {"", 1}}, c.Sorted())
	assert.Empty(t, Counts{}.Sorted())
}

func TestHandled(t *testing.T) {
	for _, test := range []struct {
		sent, again     int
		pending, unread int64
		want            int
	}{{10, 0, 0, 0, 10}, {10, 2, 3, 1, 4}, {10, 2, 1 << 40, 0, 0}, {10, 0, 0, 1 << 40, 0}} {
		assert.Equal(t, test.want, Handled(test.sent, test.again, test.pending, test.unread), test)
	}
}
