package dlq

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/wire"
)

var edited = time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)

func TestChanges(t *testing.T) {
	was := func(s string) *string { return &s }
	const sumOfA = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
	headers := func(pairs ...any) amqp091.Publishing {
		table := amqp091.Table{}
		for i := 0; i < len(pairs); i += 2 {
			table[pairs[i].(string)] = pairs[i+1]
		}

		return amqp091.Publishing{Headers: table}
	}
	body := func(s string) amqp091.Publishing { return amqp091.Publishing{Body: []byte(s)} }
	none := amqp091.Publishing{}

	for name, test := range map[string]struct {
		before, after amqp091.Publishing
		want          Edit
		same          bool
	}{
		"nothing":          {same: true},
		"kinds of nothing": {before: headers(), after: amqp091.Publishing{Body: []byte{}}, same: true},
		"the same": {before: headers("a", math.NaN(), "b", []any{int8(1)}),
			after: headers("a", math.NaN(), "b", []any{int8(1)}), same: true},
		"the same moment": {before: amqp091.Publishing{Timestamp: edited},
			after: amqp091.Publishing{Timestamp: edited.Local()}, same: true},
		"body": {before: body("a"), after: body("b"), want: Edit{Size: 1, SHA256: sumOfA, Body: "a"}},
		"no body before": {before: none, after: body("b"),
			want: Edit{SHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}},
		"no text": {before: body("\xff"), after: none,
			want: Edit{Size: 1, SHA256: "a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89"}},
		"a long body": {before: body(strings.Repeat("a", maxEditsBytes+1)), after: none,
			want: Edit{Size: maxEditsBytes + 1,
				SHA256: "ba7bea600e8f3dfd3385b6bd01756500fc11dfff0a54b6b68af8cc4733b959e8"}},
		"header changed": {before: headers("a", "1", "b", "2"), after: headers("a", "3", "b", "2"),
			want: Edit{Headers: map[string]*string{"a": was("1")}}},
		"its type changed": {before: headers("a", int8(1)), after: headers("a", int16(1)),
			want: Edit{Headers: map[string]*string{"a": was("1")}}},
		"header removed": {before: headers("a", true), after: none,
			want: Edit{Headers: map[string]*string{"a": was("true")}}},
		"header added": {before: none, after: headers("a", "1"),
			want: Edit{Headers: map[string]*string{"a": nil}}},
		"what AMQP has not": {before: headers("a", "1"), after: headers("a", struct{}{}),
			want: Edit{Headers: map[string]*string{"a": was("1")}}},
		"a long header": {before: headers("a", strings.Repeat("b", 300)), after: none,
			want: Edit{Headers: map[string]*string{"a": was(strings.Repeat("b", 252) + "…")}}},
		"a header of no text": {before: headers("\xff", "\xff"), after: none,
			want: Edit{Headers: map[string]*string{"\uFFFD": was("\uFFFD")}}},
		"properties": {
			before: amqp091.Publishing{ContentType: "a", DeliveryMode: 2, Timestamp: edited, AppId: "b"},
			after:  amqp091.Publishing{ContentType: "c", DeliveryMode: 1, Priority: 4, AppId: "b"},
			want: Edit{Properties: map[string]string{"content_type": "a", "delivery_mode": "2", "priority": "",
				"timestamp": "2026-01-02T03:04:05Z"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, changed := changes(test.before, test.after, edited.Add(time.Microsecond).Local(), "ann")
			assert.Equal(t, !test.same, changed)
			test.want.At, test.want.By = edited, "ann"
			assert.Equal(t, test.want, got)
		})
	}
}

func TestTrail(t *testing.T) {
	was := "a<b"
	first := Edit{At: edited, By: "ann@host", Size: 3, SHA256: "00", Body: "a<b", Headers: map[string]*string{"a": &was,
		"b": nil}, Properties: map[string]string{"type": ""}}
	second := Edit{At: edited.Add(time.Hour), Headers: map[string]*string{"a": nil}}

	history := appendEdit("", first)
	const spelled = `[{"at":"2026-01-02T03:04:05.678Z","by":"ann@host","size":3,"sha256":"00","body":"a<b","headers":{"a":"a<b","b":null},"properties":{"type":""}}]`
	assert.JSONEq(t, spelled, history)
	assert.Len(t, history, len(spelled), "no escapes of <, which would take the little room there is")
	assert.Equal(t, []Edit{first}, readEdits(history))
	assert.Equal(t, []Edit{first, second}, readEdits(appendEdit(history, second)))
	assert.Equal(t, []Edit{second}, readEdits(appendEdit("nonsense", second)))
}

// A history that is too long gives up what is worth least, and no more than it must.
func TestTrailGivesUp(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	valued := func(n int) map[string]*string {
		value := long(n)
		return map[string]*string{"changed": &value, "added": nil}
	}
	mark := givenUp
	marked := map[string]*string{"changed": &mark, "added": nil}
	many := map[string]*string{}
	for i := range 1000 {
		many[fmt.Sprintf("%03d", i)] = nil
	}
	at := func(i int, e Edit) Edit {
		e.At = edited.Add(time.Duration(i) * time.Hour)
		return e
	}

	for name, test := range map[string]struct{ edits, want []Edit }{
		"just fits": {[]Edit{{Body: long(1000)}, {Body: long(900)}},
			[]Edit{{Body: long(1000)}, {Body: long(900)}}},
		"the oldest body": {[]Edit{{Body: long(1000)}, {Body: long(500)}, {Body: long(600)}},
			[]Edit{{}, {Body: long(500)}, {Body: long(600)}}},
		"the next body": {[]Edit{{Body: long(1000)}, {Body: long(500)}, {Body: long(1600)}},
			[]Edit{{}, {}, {Body: long(1600)}}},
		"the new body": {[]Edit{{Body: long(900)}, {Body: long(2048), Headers: valued(9)}},
			[]Edit{{}, {Headers: valued(9)}}},
		"values of the oldest": {[]Edit{{Headers: valued(1000)}, {Headers: valued(1200), Body: "a"}},
			[]Edit{{Headers: marked}, {Headers: valued(1200)}}},
		"values of the new one": {[]Edit{{Headers: valued(10)}, {Headers: valued(2048)}},
			[]Edit{{Headers: marked}, {Headers: marked}}},
		"the oldest edit": {[]Edit{{By: long(200), Properties: map[string]string{"type": long(900)}},
			{Properties: map[string]string{"type": long(1000)}}},
			[]Edit{{Properties: map[string]string{"type": long(1000)}}}},
		"names of the new one": {[]Edit{{By: "ann"}, {Headers: many}},
			[]Edit{{Headers: firstHalf(firstHalf(firstHalf(many)))}}},
		"properties of the new": {[]Edit{{By: "ann"}, {By: "bob", Properties: map[string]string{"type": long(2048)}}},
			[]Edit{{By: "bob"}}},
		"who is it":               {[]Edit{{By: long(2048)}}, []Edit{{By: long(252) + "…"}}},
		"what nobody would write": {[]Edit{{SHA256: long(2048)}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			history := ""
			for i, e := range test.edits {
				history = appendEdit(history, at(i, e))
			}
			for i := range test.want {
				test.want[i] = at(len(test.edits)-len(test.want)+i, test.want[i])
			}
			assert.LessOrEqual(t, len(history), maxEditsBytes)
			assert.Equal(t, test.want, readEdits(history))
		})
	}
}

func TestTrailIsBounded(t *testing.T) {
	texts := rapid.OneOf(text(maxEditsBytes+9), rapid.Map(rapid.IntRange(0, 3000), func(n int) string {
		return strings.Repeat("\x01", n)
	}))
	var names []string
	for _, property := range properties(&amqp091.Publishing{}) {
		names = append(names, property.name)
	}
	edit := rapid.Custom(func(t *rapid.T) Edit {
		e := Edit{At: edited, By: texts.Draw(t, "by"), Body: texts.Draw(t, "body")}
		e.Headers = rapid.MapOfN(texts, rapid.Ptr(texts, true), 0, 9).Draw(t, "headers")
		e.Properties = rapid.MapOfN(rapid.SampledFrom(names), texts, 0, 9).Draw(t, "properties")

		return e
	})
	rapid.Check(t, func(t *rapid.T) {
		history := texts.Draw(t, "history")
		for _, e := range rapid.SliceOfN(edit, 1, 9).Draw(t, "edits") {
			history = appendEdit(history, e)
			require.LessOrEqual(t, len(history), maxEditsBytes)
			require.True(t, utf8.ValidString(history))
			require.True(t, json.Valid([]byte(history)))
			edits := readEdits(history)
			require.NotEmpty(t, edits)
			require.True(t, edits[len(edits)-1].At.Equal(edited), "the new one is there")
			require.Equal(t, edits, readEdits(encodeEdits(edits)))
		}
	})
}

func TestReadEditsOfNonsense(t *testing.T) {
	for _, text := range []string{
		"", "x", "null", "5", "{}", "[]", "[null]", "[{}]", `[5]`, `[{"at":"now"}]`,
		`[{"at":"9999-12-31T23:59:59-14:00"}]`, `[{"at":"2026-01-02T03:04:05Z","size":-1}]`,
		`[{"at":"2026-01-02T03:04:05Z"}` + strings.Repeat(" ", wire.MaxEditsBytes) + `]`, strings.Repeat("[", 2000),
	} {
		assert.Empty(t, readEdits(text), text)
	}
}
