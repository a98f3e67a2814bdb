package dlq

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/retry"
)

func TestFilterMatches(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	deadLetter := DeadLetter{
		UUID: "uuid",
		DeadLetter: retry.DeadLetter{
			Reason: "exhausted", Topic: "orders", Handler: "ship", Error: "Boom: no. 7", ErrorType: "*a.Error",
			LastFailure: now.Add(-time.Hour),
			Calls:       4, Replays: 2,
		},
		Message: amqp091.Publishing{
			Headers: amqp091.Table{
				"text": "a", "int": int32(-5), "bool": true, "bytes": []byte("b"), "raw": []byte("\xff"), "float": 1.5,
				"void": nil, "nan": math.NaN(),
				"time": now, "array": []any{"a", int8(1)}, "table": amqp091.Table{"k": []byte("v")},
				"decimal": amqp091.Decimal{Scale: 2, Value: 5},
			},
			Body: []byte(
				`{"id":17,"price":1.50,"big":9007199254740993,"ok":true,"no":null,"name":"Ann","tags":["a","b"],"items":[{"sku":"A1","n":1},{"sku":"B2","n":2}]}`),
		},
	}
	timeless := deadLetter
	timeless.LastFailure = time.Time{}
	fresh := deadLetter
	fresh.Replays = 0
	mute := DeadLetter{}
	noJSON := deadLetter
	noJSON.Message.Body = []byte(`{"name":"Ann"`)

	header := func(name, value string) Filter { return Filter{Headers: map[string]string{name: value}} }
	field := func(path, value string) Filter { return Filter{Fields: []Field{{path, value}}} }

	for name, test := range map[string]struct {
		filter  Filter
		yes, no []DeadLetter
		noMatch bool
	}{
		"all": {filter: Filter{}, yes: []DeadLetter{timeless, fresh, mute}},
		"reason": {filter: Filter{Reasons: []retry.Reason{"permanent", "exhausted"}},
			no: []DeadLetter{mute}},
		"another reason": {filter: Filter{Reasons: []retry.Reason{"permanent"}}, noMatch: true},
		"no reason": {filter: Filter{Reasons: []retry.Reason{""}}, noMatch: true,
			yes: []DeadLetter{mute}},
		"topic":              {filter: Filter{Topics: []string{"orders"}}, no: []DeadLetter{mute}},
		"another topic":      {filter: Filter{Topics: []string{"order"}}, noMatch: true},
		"handler":            {filter: Filter{Handlers: []string{"bill", "ship"}}, no: []DeadLetter{mute}},
		"another handler":    {filter: Filter{Handlers: []string{"bill"}}, noMatch: true},
		"error type":         {filter: Filter{ErrorTypes: []string{"*a.Error"}}, no: []DeadLetter{mute}},
		"another error type": {filter: Filter{ErrorTypes: []string{"*b.Error"}}, noMatch: true},
		"fingerprint": {filter: Filter{Fingerprints: []string{"000000000000", deadLetter.Fingerprint().ID}},
			no: []DeadLetter{mute}},
		"another fingerprint":    {filter: Filter{Fingerprints: []string{"000000000000"}}, noMatch: true},
		"UUID":                   {filter: Filter{UUIDs: []string{"uuid"}}, no: []DeadLetter{mute}},
		"another UUID":           {filter: Filter{UUIDs: []string{"uuid2"}}, noMatch: true},
		"error text":             {filter: Filter{ErrorContains: "Boom"}, no: []DeadLetter{mute}},
		"error text, other case": {filter: Filter{ErrorContains: "boom"}, noMatch: true},
		"text of the error":      {filter: Filter{Text: "boom"}, no: []DeadLetter{mute}},
		"text of a header":       {filter: Filter{Text: "\"A\",1"}, no: []DeadLetter{mute}},
		"text of the body":       {filter: Filter{Text: "aNN"}, no: []DeadLetter{mute}, yes: []DeadLetter{noJSON}},
		"text that is nowhere":   {filter: Filter{Text: "nowhere"}, noMatch: true},
		"error expression": {filter: Filter{ErrorMatches: regexp.MustCompile(`no\. \d$`)},
			no: []DeadLetter{mute}},
		"another expression": {filter: Filter{ErrorMatches: regexp.MustCompile(`^no`)}, noMatch: true},
		"older":              {filter: Filter{OlderThan: 59 * time.Minute}, no: []DeadLetter{timeless}},
		"not older":          {filter: Filter{OlderThan: time.Hour}, noMatch: true},
		"newer":              {filter: Filter{NewerThan: 61 * time.Minute}, no: []DeadLetter{timeless}},
		"not newer":          {filter: Filter{NewerThan: time.Hour}, noMatch: true},
		"between": {filter: Filter{OlderThan: time.Minute, NewerThan: 2 * time.Hour},
			no: []DeadLetter{timeless}},
		"calls":                   {filter: Filter{MinCalls: 4, MaxCalls: 4}, no: []DeadLetter{mute}},
		"more calls":              {filter: Filter{MinCalls: 5}, noMatch: true},
		"fewer calls":             {filter: Filter{MaxCalls: 3}, noMatch: true, yes: []DeadLetter{mute}},
		"replays":                 {filter: Filter{MinReplays: 2, MaxReplays: 2}, no: []DeadLetter{fresh}},
		"more replays":            {filter: Filter{MinReplays: 3}, noMatch: true},
		"fewer replays":           {filter: Filter{MaxReplays: 1}, noMatch: true, yes: []DeadLetter{fresh}},
		"never replayed":          {filter: Filter{NeverReplayed: true}, noMatch: true, yes: []DeadLetter{fresh}},
		"header text":             {filter: header("text", "a"), no: []DeadLetter{mute}},
		"another header text":     {filter: header("text", "b"), noMatch: true},
		"header int":              {filter: header("int", "-5")},
		"header bool":             {filter: header("bool", "true")},
		"header bytes":            {filter: header("bytes", "b")},
		"header other bytes":      {filter: header("raw", "/w==")},
		"header float":            {filter: header("float", "1.5")},
		"header NaN":              {filter: header("nan", "NaN")},
		"header void":             {filter: header("void", "")},
		"header that is missing":  {filter: header("missing", ""), noMatch: true},
		"header time":             {filter: header("time", "2026-01-02T03:04:05Z")},
		"header array":            {filter: header("array", `["a",1]`)},
		"header table":            {filter: header("table", `{"k":"v"}`)},
		"header decimal":          {filter: header("decimal", "0.05")},
		"two headers":             {filter: Filter{Headers: map[string]string{"text": "a", "int": "-5"}}},
		"two headers, one wrong":  {filter: Filter{Headers: map[string]string{"text": "a", "int": "5"}}, noMatch: true},
		"field":                   {filter: field("name", "Ann"), no: []DeadLetter{mute, noJSON}},
		"another field":           {filter: field("name", "Bob"), noMatch: true},
		"field number":            {filter: field("id", "17")},
		"field number as written": {filter: field("price", "1.50")},
		"field number in short":   {filter: field("price", "1.5")},
		"field big number":        {filter: field("big", "9007199254740993")},
		"field other big number":  {filter: field("big", "9007199254740992"), noMatch: true},
		"field true":              {filter: field("ok", "true")},
		"field null":              {filter: field("no", "null")},
		"field null is not empty": {filter: field("no", ""), noMatch: true},
		"field that is missing":   {filter: field("missing", "null"), noMatch: true},
		"field missing, empty":    {filter: field("missing", ""), noMatch: true},
		"field in an array":       {filter: field("items.1.sku", "B2")},
		"field by a query":        {filter: field(`items.#(sku=="B2").n`, "2")},
		"field of any element":    {filter: field("items.#.sku", "B2")},
		"field of no element":     {filter: field("items.#.sku", "C3"), noMatch: true},
		"any element":             {filter: field("tags", "b")},
		"no element":              {filter: field("tags", "c"), noMatch: true},
		"number of elements":      {filter: field("items.#", "2")},
		"two fields":              {filter: Filter{Fields: []Field{{"id", "17"}, {"name", "Ann"}}}},
		"two fields, one wrong":   {filter: Filter{Fields: []Field{{"id", "17"}, {"name", "Bob"}}}, noMatch: true},
		"anything": {filter: Filter{Where: func(l *DeadLetter) bool {
			return l.UUID == "uuid"
		}}, no: []DeadLetter{mute}},
		"one of two wrong": {filter: Filter{Topics: []string{"orders"}, Handlers: []string{"bill"}}, noMatch: true},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, test.filter.Validate())
			assert.Equal(t, !test.noMatch, test.filter.Matches(&deadLetter, now))
			for _, l := range test.yes {
				assert.True(t, test.filter.Matches(&l, now))
			}
			for _, l := range test.no {
				assert.False(t, test.filter.Matches(&l, now))
			}
		})
	}
}

func TestFilterValidate(t *testing.T) {
	const known = "one of exhausted, permanent, expired, undecodable, panic, crashed, unpublishable, rejected, " +
		"delivery-limit, maxlen, too-large, postponed-too-long"
	const positive = "0 (no bound) or more"
	type fault struct{ path, wanted, found string }
	for name, test := range map[string]struct {
		filter Filter
		want   []fault
	}{
		"nothing": {},
		"reasons": {Filter{Reasons: []retry.Reason{"exhausted", "bored", ""}},
			[]fault{{"Filter.Reasons[1]", known, `"bored"`}}},
		"UUID": {Filter{UUIDs: []string{""}}, []fault{{"Filter.UUIDs[0]", "a UUID", `""`}}},
		"fingerprint": {Filter{Fingerprints: []string{"a492b9c065e2", "A492B9C065E2"}},
			[]fault{{"Filter.Fingerprints[1]", "12 hexadecimal digits in lower case, as `stat --by fingerprint` prints them",
				`"A492B9C065E2"`}}},
		"older": {Filter{OlderThan: -1}, []fault{{"Filter.OlderThan", positive, "-1ns"}}},
		"newer": {Filter{NewerThan: -1}, []fault{{"Filter.NewerThan", positive, "-1ns"}}},
		"older than new": {Filter{OlderThan: time.Hour, NewerThan: time.Hour},
			[]fault{{"Filter.OlderThan", "less than NewerThan (1h0m0s), as nothing is older than that and newer",
				"1h0m0s"}}},
		"min calls":   {Filter{MinCalls: -1}, []fault{{"Filter.MinCalls", positive, "-1"}}},
		"max calls":   {Filter{MaxCalls: -1}, []fault{{"Filter.MaxCalls", positive, "-1"}}},
		"calls":       {Filter{MinCalls: 2, MaxCalls: 1}, []fault{{"Filter.MinCalls", "at most MaxCalls (1)", "2"}}},
		"min replays": {Filter{MinReplays: -1}, []fault{{"Filter.MinReplays", positive, "-1"}}},
		"max replays": {Filter{MaxReplays: -1}, []fault{{"Filter.MaxReplays", positive, "-1"}}},
		"replays": {Filter{MinReplays: 3, MaxReplays: 2},
			[]fault{{"Filter.MinReplays", "at most MaxReplays (2)", "3"}}},
		"never replayed": {Filter{NeverReplayed: true, MinReplays: 1},
			[]fault{{"Filter.MinReplays", "0 with NeverReplayed", "1"}}},
		"header": {Filter{Headers: map[string]string{"": "a"}},
			[]fault{{`Filter.Headers[""]`, "the name of a header", `""`}}},
		"field": {Filter{Fields: []Field{{"a", ""}, {"", "b"}}},
			[]fault{{"Filter.Fields[1].Path", "the path of a field, such as customer.id", `""`}}},
		"all at once": {Filter{OlderThan: -1, MaxReplays: -1}, []fault{
			{"Filter.OlderThan", positive, "-1ns"}, {"Filter.MaxReplays", positive, "-1"},
		}},
		"what is right": {filter: Filter{OlderThan: time.Hour, NewerThan: 2 * time.Hour, MinCalls: 1, MaxCalls: 1,
			NeverReplayed: true, MaxReplays: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.filter.Validate()
			if len(test.want) == 0 {
				require.NoError(t, err)
				return
			}
			var joined interface{ Unwrap() []error }
			require.ErrorAs(t, err, &joined)
			var got []fault
			for _, err := range joined.Unwrap() {
				var e *config.FieldError
				require.ErrorAs(t, err, &e)
				got = append(got, fault{e.Path, e.Wanted, e.Found})
			}
			assert.Equal(t, test.want, got)
		})
	}
}

// A body can be anything, and gjson's own check would go as deep as it does.
func TestFilterOfHostileBodies(t *testing.T) {
	filter := Filter{Fields: []Field{{"a.#.b", "c"}}}
	for _, body := range []string{
		strings.Repeat("[", 16<<20), strings.Repeat(`{"a":`, 4<<20), strings.Repeat("[", 5000) +
			strings.Repeat("]", 5000), "\xff", "", `"\ud800"`,
	} {
		assert.False(t, filter.Matches(&DeadLetter{Message: amqp091.Publishing{Body: []byte(body)}}, time.Now()))
	}
}

func FuzzFilter(f *testing.F) {
	f.Add("items.#.sku", []byte(`{"items":[{"sku":"A1"}]}`), "A1", "k", []byte("A1"))
	f.Add(`items.#(sku=="A1")#|0.n`, []byte(`{"items":[{"sku":"A1","n":null}]}`), "null", "", []byte("\xff"))
	f.Add("@this|@pretty.a", []byte(`[[[]]]`), "", "a", []byte{})
	f.Add("{a,b.c}", []byte(`{"a":1e999}`), "1e999", "a", []byte{})
	f.Fuzz(func(_ *testing.T, path string, body []byte, value, name string, header []byte) {
		l := DeadLetter{Message: amqp091.Publishing{Body: body, Headers: amqp091.Table{name: header,
			value: []any{value, amqp091.Table{path: header}}}}}
		filter := Filter{Fields: []Field{{path, value}}, OlderThan: 1}
		_ = filter.Validate()
		_ = filter.Matches(&l, time.Unix(0, 0))
		filter = Filter{Fields: []Field{{path, value}}}
		_ = filter.Matches(&l, time.Unix(0, 0))
		_ = Filter{Headers: map[string]string{name: value, value: value}}.Matches(&l, time.Unix(0, 0))
	})
}

func TestParseField(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]Field{
		"a=b": {"a", "b"}, "a=": {"a", ""}, "a=b=c": {"a", "b=c"}, `a.#(b==")=").c=1`: {`a.#(b==")=").c`, "1"},
		`a\=b=c`: {`a\=b`, "c"},
		`x"y=1`:  {`x"y`, "1"}, "a)=b": {"a)", "b"},
	} {
		field, ok := ParseField(text)
		assert.True(t, ok, text)
		assert.Equal(t, want, field, text)
	}
	for _, text := range []string{"", "=b", "a", `a.#(b="c")`, `a\=`} {
		_, ok := ParseField(text)
		assert.False(t, ok, text)
	}
}
