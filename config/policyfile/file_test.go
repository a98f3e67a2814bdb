package policyfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
)

func itoa(i int) string { return strconv.Itoa(i) }

const everyField = `
default:
  mode: retry
  retries: 6
  backoff: {kind: exponential, initial: 1s, factor: 3, max: 1m}
  immediate: 2
  jitter: 0.2
  max_age: 1h30m
  on_expiry: drop
  max_postpone: 12h
  retry_only: ["*url.Error", "*net.OpError"]
  never_retry: ["*fs.PathError"]
  strategy: shared
  classic_queues: true
  protect: policy
  crash_limit: 5
topics:
  orders.*:
    delays: [1s, 30s, 5m]
    retries: 5
  "*.audit": {mode: off}
  emails:
    retries: 3
    backoff: {kind: linear, initial: 5s, step: 500ms}
  plain:
`

// deep is what is wanted of files that are nested too deep.
const deep = "must be at most 64 open brackets and columns of indentation, got more"

func everyFieldInCode() config.Policies {
	return config.Policies{
		Default: config.Policy{
			Mode: config.ModeRetry, Retries: 6,
			Backoff: config.Backoff{Kind: config.BackoffExponential, Initial: time.Second, Factor: 3,
				Max: time.Minute},
			Immediate: 2, Jitter: 0.2, MaxAge: 90 * time.Minute, OnExpiry: config.ExpiryDrop,
			MaxPostpone:   12 * time.Hour,
			RetryOnly:     []config.ErrorMatch{config.TypeName("*url.Error"), config.TypeName("*net.OpError")},
			NeverRetry:    []config.ErrorMatch{config.TypeName("*fs.PathError")},
			ClassicQueues: true, Strategy: config.StrategyShared, Protect: config.ProtectionPolicy,
			CrashLimit: 5,
		},
		Topics: map[string]config.Policy{
			"orders.*": {Delays: []time.Duration{time.Second, 30 * time.Second, 5 * time.Minute}, Retries: 5},
			"*.audit":  {Mode: config.ModeOff},
			"emails": {Retries: 3, Backoff: config.Backoff{Kind: config.BackoffLinear, Initial: 5 * time.Second,
				Step: 500 * time.Millisecond}},
			"plain": {},
		},
	}
}

// files that are right or wrong, with what Parse says of the latter. They are the first seeds of
// the fuzz test, too.
var files = []struct {
	name, text string
	want       []string
}{
	{"every field", everyField, nil},
	{"empty", "", nil},
	{"comments only", "# nothing yet\n", nil},
	{"null", "null", nil},
	{"nothing below", "default:\ntopics:\n", nil},
	{"a document's marks", "%YAML 1.2\n---\ndefault: {retries: 2}\n...\n", nil},
	{"byte order mark, CRLF", "\ufeffdefault:\r\n  retries: 1\r\n  max_age: 1h\r\n", nil},
	{"keys in all ways", "\"default\": {'retries': 2}\n? topics\n: {12: {retries: 1}, true: {retries: 1}}\n", nil},
	{"text in all ways", "default:\n  mode: \"off\"\ntopics:\n  a: {mode: 'off'}\n  b:\n    mode: >-\n      off\n",
		nil},
	{"editor's schema in JSON", `{"$schema": "policies.schema.json", "default": {}}`, nil},
	{"zeros", "default: {retries: 0, jitter: 0.0, max_age: 0s, delays: []}", nil},

	{"list", "- a", []string{"line 1: wrong type: must be a mapping, got a list"}},
	{"scalar", "\n5", []string{"line 2: wrong type: must be a mapping, got 5 (a number)"}},
	{"two documents", "default: {}\n---\ntopics: {}\n", []string{"line 3: a second document: must be one document, " +
		"without another below a line of ---"}},
	{"two JSON values", "{}{}", []string{"line 1: neither YAML nor JSON: value is not allowed in this context"}},
	{"open bracket", "default:\n  delays: [1s\n", []string{"line 2: neither YAML nor JSON: sequence end token ']' " +
		"not found"}},
	{"tab", "default:\n\tretries: 5\n", []string{"line 2: neither YAML nor JSON: found character '\t' that cannot " +
		"start any token"}},
	{"no UTF-8", "default:\n  mode: \xff\n", []string{"line 2: no text: must be UTF-8, got \"  mode: \\xff\""}},
	{"UTF-16", "\xff\xfed\x00e\x00", []string{`line 1: no text: must be UTF-8, got "\xff\xfed\x00e\x00"`}},
	{"control character", "default:\n  mode: \"\x00\"\n",
		[]string{`line 2: no text: must be without control characters, got "\x00"`}},

	{"unknown keys", "default:\n  retires: 5\n  maxAge: 10m\n  foo: 1\n  backoff: {kind: linear, initial: 1s, maxx: " +
		"1m}\norders: {}\n", []string{
		"line 1: default.retries: missing with a backoff, which has no end of its own: must be 1..1000, got 0",
		"line 2: default.retires: unknown key, did you mean retries?",
		"line 3: default.maxAge: unknown key, did you mean max_age?",
		"line 4: default.foo: unknown key: must be one of mode, retries, delays, backoff, immediate, jitter, " +
			"max_age, on_expiry, max_postpone, retry_only, never_retry, strategy, classic_queues, " +
			"ladder, protect, crash_limit",
		"line 5: default.backoff.maxx: unknown key, did you mean max?",
		"line 6: orders: unknown key: must be one of default, topics",
	}},
	{"capitals", "default: {Mode: off}", []string{"line 1: default.Mode: unknown key, did you mean mode?"}},
	{"wrong types", "default:\n  mode: true\n  retries: '5'\n  delays: 5s\n  jitter: .nan\n  backoff: 5s\n  " +
		"retry_only: [5, ~]\n  immediate: 010\n  crash_limit: 3.0\ntopics: [a]", []string{
		"line 2: default.mode: wrong type: must be text that is not empty, got true (a boolean)",
		`line 3: default.retries: wrong type: must be a whole number in decimal digits, without sign and quotes, got "5"`,
		`line 4: default.delays: wrong type: must be a list, got "5s"`,
		`line 5: default.jitter: wrong type: must be a number in decimal digits, without sign and quotes, got ".nan"`,
		`line 6: default.backoff: wrong type: must be a mapping, got "5s"`,
		"line 7: default.retry_only[0]: wrong type: must be text that is not empty, got 5 (a number)",
		"line 7: default.retry_only[1]: wrong type: must be a value, got nothing",
		"line 8: default.immediate: wrong type: must be a whole number in decimal digits, without sign and quotes, " +
			"got 010 (a number)",
		"line 9: default.crash_limit: wrong type: must be a whole number in decimal digits, without sign and quotes, " +
			"got 3.0 (a number)",
		"line 10: topics: wrong type: must be a mapping, got a list",
	}},
	{"durations", "default:\n  delays:\n  - 30\n  - 1d\n  - 1h 30m\n  - -5s\n  - 1x\n  - '0'\n  - 99999999999h\n  - " +
		"{}\n", func() (want []string) {
		const must = "must be a duration with its units, such as 500ms, 30s, 1m30s or 24h (a day has no unit of its " +
			"own), got "
		return []string{
			"line 3: default.delays[0]: wrong type: " + must + "30 (a number)",
			"line 4: default.delays[1]: wrong type: " + must + `"1d"`,
			"line 5: default.delays[2]: wrong type: " + must + `"1h 30m"`,
			"line 6: default.delays[3]: wrong type: " + must + `"-5s"`,
			"line 7: default.delays[4]: wrong type: " + must + `"1x"`,
			"line 8: default.delays[5]: wrong type: " + must + `"0"`,
			`line 9: default.delays[6]: out of bounds: must be smaller, got "99999999999h"`,
			"line 10: default.delays[7]: wrong type: " + must + "a mapping",
		}
	}()},
	{"numbers", "default:\n  retries: 99999999999999999999\n  jitter: 1e999\n  immediate: 0x1\n  crash_limit: 1_0\n",
		[]string{
			"line 2: default.retries: out of bounds: must be smaller, got 99999999999999999999 (a number)",
			"line 3: default.jitter: out of bounds: must be smaller, got 1e999 (a number)",
			`line 4: default.immediate: wrong type: must be a whole number in decimal digits, without sign and quotes, got "0x1"`,
			`line 5: default.crash_limit: wrong type: must be a whole number in decimal digits, without sign and quotes, got "1_0"`,
		}},
	{"bounds", "topics:\n  orders:\n    retries: 2000\n    delays:\n      - 1s\n      - 1m\n      - 500us\n  '': " +
		"{mode: Off}\n", []string{
		`line 3: topics["orders"].retries: out of bounds: must be 1..1000, or 0 for one per delay, got 2000`,
		`line 7: topics["orders"].delays[2]: too short: must be at least 1ms, got 500µs`,
		`line 8: topics[""]: empty topic: must be the name of a topic; what holds for all topics goes to default, got ""`,
		`line 8: topics[""].mode: unknown: must be one of retry, dead-letter, off, got "Off"`,
	}},
	{"missing", "default:\n  jitter: 0.5\n\n  backoff:\n    kind: linear\n", []string{
		"line 1: default.retries: missing with a backoff, which has no end of its own: must be 1..1000, got 0",
		"line 4: default.backoff.initial: too short: must be at least 1ms, got 0s",
	}},
	{"what is wrong already is not wrong twice", "default:\n  retries: x\n  backoff:\n    kind: linear\n    initial: " +
		"30\n", []string{
		`line 2: default.retries: wrong type: must be a whole number in decimal digits, without sign and quotes, got "x"`,
		"line 5: default.backoff.initial: wrong type: must be a duration with its units, such as 500ms, 30s, 1m30s " +
			"or 24h (a day has no unit of its own), got 30 (a number)",
	}},
	{"duplicate keys", "topics:\n  a: {retries: 1}\n  b:\n    retries: 5\n    retries: 6\n  'a': {}\nx-notes: [{c: " +
		"1, c: 2}]\ntopics: {}\n", []string{
		`line 5: topics["b"].retries: duplicate key: must be given once; it is on line 4 already`,
		`line 6: topics["a"]: duplicate key: must be given once; it is on line 2 already`,
		"line 7: x-notes[0].c: duplicate key: must be given once; it is on line 7 already",
		"line 8: topics: duplicate key: must be given once; it is on line 1 already",
	}},
	{"keys that are no text", "~: 1\n", []string{"line 1: cannot be a key: must be text, in quotes if need be, got " +
		"nothing"}},
	{"tag", "default:\n  retries: !!int 5\n", []string{"line 2: default.retries: a tag: must be left out: " +
		"what a value is, the field says, got !!int"}},
	{"unquoted type", "default:\n  never_retry:\n  - *fs.PathError\n", []string{
		"line 3: default.never_retry[0]: unknown alias: must be in quotes if it is text; an alias needs its anchor " +
			"above, &fs.PathError, got *fs.PathError",
		"line 3: default.never_retry[0]: wrong type: must be a value, got nothing",
	}},
	{"unquoted glob", "topics:\n  *.events: {}\n", []string{"line 2: neither YAML nor JSON: value is not allowed in " +
		"this context: must be in quotes where text begins with *"}},
	{"type names", "default:\n  never_retry: ['*errors.errorString', '', PathError, a/b.C, '&fs.PathError', '**a.B']\n",
		[]string{
			`line 2: default.never_retry[1]: wrong type: must be text that is not empty, got ""`,
			"line 2: default.never_retry[0]: matches errors of any kind: must be the type of one kind of error; " +
				"values such as io.EOF need config.Is, in code, got TypeName(*errors.errorString)",
			"line 2: default.never_retry[2]: matches nothing: must be a type as %T prints it and dead letters show " +
				"it, with the package's name and no path, such as *fs.PathError, got TypeName(PathError)",
			"line 2: default.never_retry[3]: matches nothing: must be a type as %T prints it and dead letters show " +
				"it, with the package's name and no path, such as *fs.PathError, got TypeName(a/b.C)",
			"line 2: default.never_retry[4]: matches nothing: must be a type as %T prints it and dead letters show " +
				"it, with the package's name and no path, such as *fs.PathError, got TypeName(&fs.PathError)",
			"line 2: default.never_retry[5]: matches nothing: must be a type as %T prints it and dead letters show " +
				"it, with the package's name and no path, such as *fs.PathError, got TypeName(**a.B)",
		}},
	{"lines below long values", "# a\n\nx-a: |\n  b\n\n  c\n\nx-d: \"e\n  f\"\nx-g: >-\n  h\n  i\nx-j: k\n  l\nx-m: " +
		"[1,\n  2, # n\n\n  3]\nx-o: 'p\n\n  q'\n\ndefault:\n  retires: 1\n", []string{
		"line 24: default.retires: unknown key, did you mean retries?",
	}},
	{"tabs in JSON", "{\"default\"\t:\t{\"retires\"\t: 5}}",
		[]string{"line 1: default.retires: unknown key, did you mean retries?"}},
	{"lines in JSON", "{\r\n\"default\":\n{\t\"mode\" :\n\"x\"\n\n,\"retires\":\n5}}", []string{
		`line 3: default.mode: unknown: must be one of retry, dead-letter, off, got "x"`,
		"line 6: default.retires: unknown key, did you mean retries?",
	}},
	{"two headers of documents", "---\n# a licence\n---\ndefault: {retries: 2}\n", []string{
		"line 3: a second document: must be one document, without another below a line of ---",
	}},
	{"a tab in a name", "topics:\n  ord\ters: {retries: 2}\n",
		[]string{"line 2: a tab inside of a name or value: must be a space, or \\t in double quotes"}},
	{"a tab in a value", "default:\n  mode: o\tff\n", []string{"line 2: a tab inside of a name or value: must be a " +
		"space, or \\t in double quotes"}},
	{"duplicates in what is merged", "default: {<<: {retries: 1, retries: 2}}\n", []string{
		"line 1: default.<<.retries: duplicate key: must be given once; it is on line 1 already",
	}},
	{"values are no types", "default:\n  never_retry: [sql.ErrNoRows]\n", []string{
		"line 2: default.never_retry[0]: matches nothing: it is a value or an interface: must be a type, such as " +
			"*fs.PathError; values need config.Is and interfaces config.As, in code, got TypeName(sql.ErrNoRows)",
	}},
	{"odd names", "default: {\"a\\nb\": 1}\n", []string{
		"line 1: default[\"a\\nb\"]: unknown key: must be one of mode, retries, delays, backoff, immediate, jitter, " +
			"max_age, on_expiry, max_postpone, retry_only, never_retry, strategy, classic_queues, " +
			"ladder, protect, crash_limit",
	}},
	{"as if octal", "default: {jitter: 01}\n", []string{"line 1: default.jitter: wrong type: must be a number in " +
		"decimal digits, without sign and quotes, got 01 (a number)"}},
	{"delays twice", "default:\n  retries: 2\n  delays:\n    - 1s\n  backoff:\n    kind: linear\n    initial: 1s\n",
		[]string{
			"line 5: default.backoff: delays are given twice: must be either delays or a backoff, not both, got both",
		}},
	{"merged twice", "x-a: &a {retries: 1}\ndefault:\n  <<: *a\n  <<: *a\n",
		[]string{"line 4: default.<<: duplicate key: must be given once; it is on line 3 already"}},
	{"cycle", "default: &a\n  retries: 5\n  <<: *a\n", []string{
		"line 3: default.<<: unknown alias: must be in quotes if it is text; an alias needs its anchor above, &a, " +
			"got *a",
		"line 3: default.<<: cannot be merged: must be an alias of a mapping, or a list of these: <<: *name, " +
			"got nothing",
	}},
	{"fault at an anchor", "x-slow: &slow\n  max_age: 1d\ntopics:\n  a: *slow\n", []string{
		`line 2: topics["a"].max_age: wrong type: must be a duration with its units, such as 500ms, 30s, 1m30s or 24h (a day has no unit of its own), got "1d"`,
	}},
	{"deep", strings.Repeat("[", 65), []string{"line 1: nested too deep: " + deep}},
	{"deep in lines", strings.Repeat("- ", 32), []string{"line 1: nested too deep: " + deep}},
	{"long", "default:\n  mode: " + strings.Repeat("x", 2000),
		[]string{`line 2: default.mode: unknown: must be one of retry, dead-letter, off, got "` +
			strings.Repeat("x", 79) + "…"}},
}

func TestParse(t *testing.T) {
	for _, file := range files {
		t.Run(file.name, func(t *testing.T) {
			policies, err := policyfile.Parse([]byte(file.text))
			assert.Equal(t, file.want, faults(t, err))
			if err != nil {
				assert.Equal(t, config.Policies{}, policies, "nothing half-read")
			}
		})
	}
}

func TestParseReadsEveryField(t *testing.T) {
	policies, err := policyfile.Parse([]byte(everyField))
	require.NoError(t, err)
	assert.Equal(t, everyFieldInCode(), policies)

	empty, err := policyfile.Parse(nil)
	require.NoError(t, err)
	assert.Equal(t, config.Policies{}, empty)
}

func TestParseAnchors(t *testing.T) {
	policies, err := policyfile.Parse([]byte(`
x-slow: &slow
  retries: 3
  max_age: &age 1h
  backoff: &growing {kind: linear, initial: 1s}
topics:
  as-it-is: *slow
  changed:
    <<: *slow
    retries: 2
  without:
    <<: [*slow, {retries: 9, jitter: 0.5}]
    max_age: null   # left out, whatever is merged
  parts: {max_age: *age, retries: 1, backoff: {<<: *growing, initial: 2s}}
`))
	require.NoError(t, err)
	growing := config.Backoff{Kind: config.BackoffLinear, Initial: time.Second}
	assert.Equal(t, map[string]config.Policy{
		"as-it-is": {Retries: 3, MaxAge: time.Hour, Backoff: growing},
		"changed":  {Retries: 2, MaxAge: time.Hour, Backoff: growing},
		"without":  {Retries: 3, Jitter: 0.5, Backoff: growing},
		"parts": {Retries: 1, MaxAge: time.Hour, Backoff: config.Backoff{Kind: config.BackoffLinear,
			Initial: 2 * time.Second}},
	}, policies.Topics)
}

// What a file costs is bounded, whatever is in it.
func TestParseBombs(t *testing.T) {
	t.Parallel()
	lines := func(format string, n int) string { return strings.Repeat(format+"\n", n) }
	var laughs, topics, merges, costly strings.Builder
	costly.WriteString("x-c: &c {retries: 1000, backoff: {kind: exponential, initial: 1ms, factor: 1.02, max: " +
		"1h}}\ntopics:\n")
	for i := range 11_000 {
		costly.WriteString("  t" + itoa(i) + ": *c\n")
	}
	laughs.WriteString("x-0: &a0 [x]\n")
	for i := range 40 {
		laughs.WriteString(strings.NewReplacer("N", itoa(i+1), "M", itoa(i)).Replace("x-N: &aN [*aM, *aM]\n"))
	}
	topics.WriteString("x-d: &d {delays: [" + strings.Repeat("1s,", 900) + "1s]}\ntopics:\n")
	merges.WriteString("x-m: &m {" + strings.Repeat("k", 1))
	for i := range 2000 {
		topics.WriteString("  t" + itoa(i) + ": *d\n")
		merges.WriteString(": 1, k" + itoa(i))
	}
	merges.WriteString(": 1}\n")
	for i := range 2000 {
		merges.WriteString("x-" + itoa(i) + ": {<<: *m}\n")
	}
	for name, test := range map[string]struct{ text, want string }{
		"aliases of aliases": {laughs.String() + "default: {delays: *a40}\n", "default.delays[0]: wrong type"},
		"aliases of lists": {topics.String(), "too much: must be at most 100000 values, with those that " +
			"aliases and merge keys repeat"},
		"merges":          {merges.String(), "too much: must be at most 100000 values"},
		"too long":        {strings.Repeat("#", 1<<18+1), "too long: must be at most 262144 bytes"},
		"many entries":    {lines("a: 1", 100_000), "too long"},
		"most entries":    {lines("a: 1", 25_000), "unknown key"},
		"costly policies": {costly.String(), "too many different delays"},
		"many brackets": {strings.Repeat("]", 5_000), "line 1: neither YAML nor JSON: could not find '[' " +
			"character corresponding to ']'"},
		"open brackets":  {strings.Repeat("[", 1<<18), "nested too deep"},
		"open dashes":    {strings.Repeat("- ", 1<<17), "nested too deep"},
		"open questions": {strings.Repeat("? ", 1<<17), "nested too deep"},
		"stairs":         {stairs(600), "nested too deep"},
		"long key":       {strings.Repeat("a", 1<<17) + ": 1", "unknown key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parse := func() time.Duration {
				start := time.Now()
				_, err := policyfile.Parse([]byte(test.text))
				assert.ErrorContains(t, err, test.want)

				return time.Since(start)
			}
			const most = 60 * time.Second // with the race detector
			took := parse()
			for range 2 { // a busy machine is slow now and then, and a bomb always
				if took >= most {
					took = min(took, parse())
				}
			}
			assert.Less(t, took, most)
		})
	}
}

func stairs(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func TestParseTakesLargeFiles(t *testing.T) {
	var b strings.Builder
	b.WriteString("topics:\n")
	for i := range 1000 {
		b.WriteString("  service.topic-" + itoa(i) + ".*:\n    delays: [1s, 5s, 30s, 10m]\n    max_age: 1h\n    " +
			"never_retry: ['*json.SyntaxError']\n")
	}
	policies, err := policyfile.Parse([]byte(b.String()))
	require.NoError(t, err)
	assert.Len(t, policies.Topics, 1000)
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) string {
		path := filepath.Join(dir, "retry.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}

	policies, err := policyfile.Load(write(everyField))
	require.NoError(t, err)
	assert.Equal(t, everyFieldInCode(), policies)

	path := write("default:\n  max_age: 1ns\n  retires: 5\ntopics:\n  orders.*:\n    jitter: 7\n")
	_, err = policyfile.Load(path)
	assert.Equal(t, []string{
		path + ":2: default.max_age: too short: must be at least 1ms, or left out for no limit, got 1ns",
		path + ":3: default.retires: unknown key, did you mean retries?",
		path +
			`:6: topics["orders.*"].jitter: out of bounds: must be 0..1, the part of each delay that is random, got 7`,
	}, faults(t, err))

	_, err = policyfile.Load(write("default: {"))
	assert.Equal(t, []string{path + ":1: neither YAML nor JSON: could not find flow mapping end token '}'"},
		faults(t, err))

	_, err = policyfile.Load(filepath.Join(dir, "none.yaml"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "none.yaml")
	_, err = policyfile.Load(dir)
	assert.ErrorContains(t, err, dir)
	_, err = policyfile.Load(write(strings.Repeat("#", 2<<20)))
	assert.ErrorContains(t, err, "too long: must be at most 262144 bytes")

	t.Setenv("AMQPRETRY__DEFAULT__MAX_AGE", "10m")
	_, err = policyfile.Load(write(everyField))
	assert.Equal(t, []string{path + ": AMQPRETRY__DEFAULT__MAX_AGE: unknown variable: the environment does not " +
		"override fields: must be left out, with its value in the file"}, faults(t, err))
}

func TestFieldErrorText(t *testing.T) {
	e := config.FieldError{File: "retry.yaml", Line: 7, Path: `topics["orders"].delays[2]`, Problem: "too short",
		Wanted: "at least 1ms", Found: "500µs"}
	assert.EqualError(t, &e, `retry.yaml:7: topics["orders"].delays[2]: too short: must be at least 1ms, got 500µs`)
	e.Line = 0
	assert.EqualError(t, &e, `retry.yaml: topics["orders"].delays[2]: too short: must be at least 1ms, got 500µs`)
	assert.EqualError(t, &config.FieldError{Line: 3, Problem: "no text"}, "line 3: no text")
}

// faults are the parts of a joined error, as text.
func faults(t *testing.T, err error) (texts []string) {
	t.Helper()
	if err == nil {
		return nil
	}
	var joined interface{ Unwrap() []error }
	require.ErrorAs(t, err, &joined)
	for _, e := range joined.Unwrap() {
		var field *config.FieldError
		require.ErrorAs(t, e, &field)
		assert.NotEmpty(t, field.Problem)
		texts = append(texts, e.Error())
	}
	return texts
}

// A 0 that is written for a topic says that there is to be none; in the default there is nothing
// that it could replace.
func TestZeroIsNoneForTopics(t *testing.T) {
	policies, err := policyfile.Parse([]byte("default: {jitter: 0.5, immediate: 2, max_age: 1h}\ntopics: {a: " +
		"{jitter: 0, immediate: 0, max_age: 0s}, b: {retries: 2}}"))
	require.NoError(t, err)
	a, b := policies.For("a"), policies.For("b")
	assert.Zero(t, a.Jitter)
	assert.Zero(t, a.Immediate)
	assert.Zero(t, a.MaxAge)
	assert.Equal(t, []any{0.5, 2, time.Hour}, []any{b.Jitter, b.Immediate, b.MaxAge})

	policies, err = policyfile.Parse([]byte("default: {jitter: 0, immediate: 0, max_age: 0s}"))
	require.NoError(t, err)
	assert.True(t, policies.Default.IsZero())
}

// A topic takes the default's classic queues unless it says a strategy, so false alone would be
// said in vain.
func TestClassicQueuesFalse(t *testing.T) {
	const classic = "default: {classic_queues: true}\n"
	policies, err := policyfile.Parse([]byte(classic + "topics: {a: {strategy: queues, classic_queues: false}, b: }"))
	require.NoError(t, err)
	assert.False(t, policies.For("a").ClassicQueues)
	assert.True(t, policies.For("b").ClassicQueues)
	_, err = policyfile.Parse([]byte("topics: {a: {classic_queues: false}}"))
	require.NoError(t, err)

	_, err = policyfile.Parse([]byte(classic + "topics: {a: {classic_queues: false}, b: {classic_queues: no}}"))
	assert.Equal(t, []string{
		`line 2: topics["b"].classic_queues: wrong type: must be true or false, without quotes, got "no"`,
		`line 2: topics["a"].classic_queues: does not undo that of the default: must be left out, with the topic's ` +
			"own strategy in its place: a topic with a strategy has quorum queues, unless it says otherwise, got false",
	}, faults(t, err))
}
