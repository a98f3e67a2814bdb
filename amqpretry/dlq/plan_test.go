package dlq

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/retry"
)

func TestOnlyCounted(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	letter := func(uuid, body string, failed time.Time, replays int) *DeadLetter {
		return &DeadLetter{UUID: uuid, DeadLetter: retry.DeadLetter{LastFailure: failed, Replays: replays},
			Message: amqp091.Publishing{Body: []byte(body)}}
	}
	counted := letter("a", "body", at, 1)
	filter := onlyCounted([]uint64{identity(counted)}, Filter{OlderThan: time.Hour})
	for range 2 { // a run with a canary goes through the queue twice
		assert.True(t, filter.Matches(letter("a", "body", at, 1), at))
	}
	assert.False(t, onlyCounted([]uint64{identity(counted)}, Filter{Where: func(*DeadLetter) bool { return false }}).
		Matches(counted, at))
	assert.False(t, onlyCounted(nil, Filter{}).Matches(counted, at))
	for _, other := range []*DeadLetter{
		letter("b", "body", at, 1), letter("a", "bodies", at, 1), letter("a", "body", at.Add(time.Millisecond), 1),
		letter("a", "body", at, 2), letter("", "body", at, 1), letter("a", "body", time.Time{}, 1),
	} {
		assert.False(t, filter.Matches(other, at))
	}
}

// All that is wrong with a plan is told at once.
func TestPlanValidate(t *testing.T) {
	t.Parallel()
	paths := func(err error) (all []string) {
		if err == nil {
			return nil
		}
		for line := range strings.Lines(err.Error()) {
			all = append(all, line[:strings.Index(line, ": ")])
		}
		var field *config.FieldError
		require.ErrorAs(t, err, &field)

		return all
	}
	assert.Empty(t, paths(Plan{Kind: Replay}.Validate()))
	assert.Empty(t, paths(Plan{Kind: Replay, Canary: Canary{Messages: 2, Tolerate: 1}, Change: &Change{}}.Validate()))
	assert.Equal(t, []string{"Plan.Limit", "Plan.Rate", "Plan.Kind", "Plan.Canary.Messages", "Plan.Canary.Watch",
		"Plan.Canary.Tolerate"}, paths(Plan{Limit: -1, Rate: -1,
		Canary: Canary{Messages: -1, Watch: -1, Tolerate: -1}}.Validate()))
	assert.Equal(t, []string{"Filter.OlderThan", "Plan.To", "Plan.Canary.Messages", "Plan.Change"},
		paths(Plan{Kind: Purge, Filter: Filter{OlderThan: -1}, To: "x", Canary: Canary{Messages: 1},
			Change: &Change{}}.Validate()))
	assert.Equal(t, []string{"Plan.To"}, paths(Plan{Kind: Move}.Validate()))
	assert.Equal(t, []string{"Plan.To"}, paths(Plan{Kind: Move, To: strings.Repeat("x", 256)}.Validate()))
}

// What a run finds behind the last message that was counted is known from the plan.
func TestReportAsCounted(t *testing.T) {
	t.Parallel()
	left := []Left{{LeftForeign, 2}}
	counted := &Report{Progress: Progress{Matched: 10}, Left: left}
	done := Report{Progress: Progress{Matched: 8, Done: 8}}
	whole := Plan{Counted: counted}.asCounted(done, nil)
	assert.Equal(t, 10, whole.Matched)
	assert.Equal(t, left, whole.Left)
	for _, plan := range []Plan{{}, {Counted: counted, Limit: 8}} {
		assert.Equal(t, done, plan.asCounted(done, nil))
	}
	assert.Equal(t, done, Plan{Counted: counted}.asCounted(done, errors.New("cut")))
	assert.Equal(t, 8, Plan{Counted: counted}.Most())
	assert.Equal(t, 3, Plan{Counted: counted, Limit: 3}.Most())
}

func TestChange(t *testing.T) {
	t.Parallel()
	body := "new"
	c := &Change{Body: &body, Remove: []string{"old"}, Set: map[string]HeaderValue{
		"text": {Value: "5"}, "n": {"int32", "5"}, "yes": {"bool", "true"}, "f": {"float64", "0.5"},
		"at": {"time", "2026-11-22T05:12:00Z"}}}
	require.NoError(t, c.Validate())
	m := amqp091.Publishing{Headers: amqp091.Table{"old": "x", "kept": "y"}, Body: []byte("before")}
	require.NoError(t, c.apply(&m))
	assert.Equal(t, amqp091.Publishing{Body: []byte("new"), Headers: amqp091.Table{"kept": "y", "text": "5",
		"n": int32(5), "yes": true, "f": 0.5, "at": time.Date(2026, 11, 22, 5, 12, 0, 0, time.UTC).Local()}}, m)

	assert.False(t, (*Change)(nil).Any())
	assert.False(t, (&Change{}).Any())
	err := (&Change{Remove: []string{"", "x-death", "twice"}, Set: map[string]HeaderValue{
		"amqpretry-count": {}, strings.Repeat("x", 256): {}, "twice": {}, "n": {"int16", "70000"}, "b": {"bool", "yes"},
		"odd": {"integer", "1"}, "array": {"array", ""}}}).Validate()
	for _, text := range []string{`"x-death" belongs to`, `"amqpretry-count" belongs to`, `"twice" is there twice`,
		"256 bytes", `Change.Set["n"]: must be an integer that fits int16`, `Change.Set["b"]: must be true or false`,
		`Change.Set["odd"]: must be one of`, `Change.Set["array"]: must be a type`, "Change.Remove: must be the name"} {
		assert.ErrorContains(t, err, text)
	}
}

// The names are those of the command line's flags and of the console's URLs.
func TestParseFilter(t *testing.T) {
	t.Parallel()
	f, err := ParseFilter(map[string][]string{"reason": {"exhausted", ""}, "topic": {"a,b", "c"}, "handler": {"h"},
		"error-type": {"*x.E"}, "uuid": {"u"}, "error": {"declined"}, "older-than": {"1d"}, "newer-than": {"720h"},
		"min-calls": {"2"}, "max-replays": {"0"}, "header": {"expr=a=b"}, "json-field": {"customer.id=17"},
		"never-replayed": {"false"}, "text": {"x"}})
	require.NoError(t, err)
	assert.Equal(t, Filter{Reasons: []retry.Reason{"exhausted", ""}, Topics: []string{"a,b", "c"},
		Handlers: []string{"h"}, ErrorTypes: []string{"*x.E"}, UUIDs: []string{"u"}, ErrorContains: "declined",
		OlderThan: 24 * time.Hour, NewerThan: 720 * time.Hour, MinCalls: 2, NeverReplayed: true, Text: "x",
		Headers: map[string]string{"expr": "a=b"}, Fields: []Field{{"customer.id", "17"}}}, f)
	f, err = ParseFilter(map[string][]string{"never-replayed": {"false"}})
	require.NoError(t, err)
	assert.True(t, f.matchesAll())

	_, err = ParseFilter(map[string][]string{"error_type": {"x"}, "min-calls": {"0"}, "max-calls": {"1", "2"},
		"older-than": {"soon"}, "min-replays": {"many"}, "error-matches": {"("}, "header": {"x", "a=1", "a=2"},
		"json-field": {"=1"}, "reason": {"exausted"}, "max-replays": {"-1"}})
	for _, text := range []string{"error_type: is no filter: must be one of reason", "min-calls: must be 1 or more",
		"max-calls: must be one value, got 2", `older-than: must be a duration above 0`, "min-replays: must be a number",
		"error-matches: must be a regular expression (error parsing", "header: must be name=value", "one value for a",
		"json-field: must be path=value", "Filter.Reasons[0]: must be one of", "Filter.MaxReplays: must be 0"} {
		assert.ErrorContains(t, err, text)
	}
}
