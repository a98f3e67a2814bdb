package policyfile

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/amqpretry/watermill-retry/config"
)

// inMapping and inSequence are the paths of what is in a map and in a list.
func inMapping(path, key string) string    { return path + "[" + strconv.Quote(key) + "]" }
func inSequence(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// source is where a value comes from: a line, or a variable.
type source struct {
	line     int
	variable string
}

// decoder puts nodes into values, and remembers where each came from, so that Validate's errors can
// say it, too.
type decoder struct {
	errs    []error
	sources map[string]source // by path; what is not there has that of what it is missing from
	failed  map[string]bool   // by path: reported already
	untrue  map[string]source // by path: false that somebody has written
	seen    map[*node]bool    // by unused
	values  int
}

func newDecoder() *decoder {
	return &decoder{sources: map[string]source{}, failed: map[string]bool{}, untrue: map[string]source{},
		seen: map[*node]bool{}}
}

func (d *decoder) fail(path string, at source, problem, wanted, found string) {
	d.failed[path] = true
	d.errs = append(d.errs, &config.FieldError{Line: at.line, Variable: at.variable, Path: path, Problem: problem,
		Wanted: wanted, Found: found})
}

func (d *decoder) wrongType(path string, at source, wanted string, n *node) {
	d.fail(path, at, "wrong type", wanted, n.String())
}

// decode sets v, which can be set, to what the node says. Null is a value that was left out.
func (d *decoder) decode(n *node, v reflect.Value, path string, at source) {
	d.mark(v.Type(), path, at)
	delete(d.failed, path) // it is another value now
	if d.values++; d.values == maxFileValues {
		d.fail("", at, "too much", fmt.Sprintf("at most %d values, with those that aliases repeat", maxFileValues),
			"more")
	}
	if d.values >= maxFileValues || n.kind == kindNull {
		return
	}
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if s, ok := d.text(n, path, at); ok {
			if err := text.UnmarshalText([]byte(s)); err != nil {
				d.fail(path, at, err.Error(), "", n.String())
			}
		}
		return
	}
	defer noneForZero(v, path)
	switch v.Kind() {
	case reflect.Struct:
		d.fields(n, v, path, at)
	case reflect.Map:
		d.keys(n, v, path, at)
	case reflect.Slice:
		d.items(n, v, path, at)
	case reflect.String:
		if s, ok := d.text(n, path, at); ok {
			v.SetString(s)
		}
	case reflect.Int64:
		d.duration(n, v, path, at)
	case reflect.Int:
		d.integer(n, v, path, at)
	case reflect.Float64:
		d.float(n, v, path, at)
	case reflect.Bool:
		d.boolean(n, v, path, at)
	default:
		panic("config: no rule to decode " + v.Type().String()) // a field that was added without one
	}
}

// noneForZero: a 0 that somebody has written for a topic says that there is to be none, whatever
// the default has.
func noneForZero(v reflect.Value, path string) {
	if !v.IsZero() || !strings.HasPrefix(path, "topics") {
		return
	}
	switch path[strings.LastIndex(path, ".")+1:] {
	case "immediate", "max_age":
		v.SetInt(config.None)
	case "jitter":
		v.SetFloat(config.None)
	}
}

// mark remembers where a value comes from, with all of its fields: those that are there are marked
// again.
func (d *decoder) mark(t reflect.Type, path string, at source) {
	d.sources[path] = at
	delete(d.untrue, path)
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[config.ErrorMatch]() {
		return
	}
	for _, f := range fieldsOf(t) {
		d.mark(t.Field(f.index).Type, inStruct(path, f.name), at)
	}
}

// entries of a mapping, each key once.
func (d *decoder) entries(n *node, path string, at source, inside func(path, key string) string) []entry {
	if n.kind != kindMapping {
		d.wrongType(path, at, "a mapping", n)
		return nil
	}
	d.duplicates(n, path, inside)
	return n.entries
}

func (d *decoder) duplicates(n *node, path string, inside func(path, key string) string) {
	for _, e := range n.twice {
		d.fail(inside(path, e.key), source{line: e.line}, "duplicate key",
			fmt.Sprintf("given once; it is on line %d already", e.before), "")
	}
	n.twice = nil // an alias does not make it one more fault
}

func (d *decoder) fields(n *node, v reflect.Value, path string, at source) {
	fields := fieldsOf(v.Type())
	for _, e := range d.entries(n, path, at, inStruct) {
		inside, line := inStruct(path, e.key), source{e.line, at.variable}
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == e.key })
		switch {
		case i >= 0:
			d.decode(e.value, v.Field(fields[i].index), inside, line)
		case path == "" && ignored(e.key):
			d.unused(e.value, e.key)
		default:
			problem, wanted := unknown("key", e.key, names(fields))
			d.fail(inside, line, problem, wanted, "")
		}
	}
}

// unknown key or other name: with what may have been meant, else with all that there is.
func unknown(what, name string, known []string) (problem, wanted string) {
	if near := nearest(name, known); near != "" {
		return "unknown " + what + ", did you mean " + near + "?", ""
	}
	const most = 20
	all := strings.Join(known[:min(len(known), most)], ", ")
	if len(known) > most {
		all += fmt.Sprintf(" or %d more", len(known)-most)
	}
	return "unknown " + what, "one of " + all
}

// unused looks for duplicate keys in what nothing is decoded from.
func (d *decoder) unused(n *node, path string) {
	if d.seen[n] {
		return
	}
	d.seen[n] = true
	d.duplicates(n, path, inStruct)
	for _, e := range n.entries {
		d.unused(e.value, inStruct(path, e.key))
	}
	for i, item := range n.items {
		d.unused(item, inSequence(path, i))
	}
}

func (d *decoder) keys(n *node, v reflect.Value, path string, at source) {
	for _, e := range d.entries(n, path, at, inMapping) {
		value := reflect.New(v.Type().Elem()).Elem()
		d.decode(e.value, value, inMapping(path, e.key), source{e.line, at.variable})
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		v.SetMapIndex(reflect.ValueOf(e.key), value)
	}
}

func (d *decoder) items(n *node, v reflect.Value, path string, at source) {
	if n.kind != kindList {
		d.wrongType(path, at, "a list", n)
		return
	}
	list := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	for i, item := range n.items {
		inside, line := inSequence(path, i), source{item.line, at.variable}
		if item.kind == kindNull {
			d.wrongType(inside, line, "a value", item)
			continue
		}
		d.decode(item, list.Index(i), inside, line)
	}
	v.Set(list)
}

func (d *decoder) text(n *node, path string, at source) (string, bool) {
	switch {
	case n.kind != kindText:
		d.wrongType(path, at, "text", n)
	case n.text == "":
		d.fail(path, at, "empty", "text, or left out", n.String())
	default:
		return n.text, true
	}
	return "", false
}

// durationPattern is a Go duration without a sign: none that a policy has can be negative.
const durationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`

var durationRegexp = regexp.MustCompile(durationPattern)

func (d *decoder) duration(n *node, v reflect.Value, path string, at source) {
	const wanted = "a duration with its units, such as 500ms, 30s, 1m30s or 24h (a day has no unit of its own)"
	if n.kind != kindText {
		d.wrongType(path, at, wanted, n)
		return
	}
	if !durationRegexp.MatchString(n.text) {
		d.fail(path, at, "no duration", wanted, n.String())
		return
	}
	duration, err := time.ParseDuration(n.text)
	if err != nil {
		d.fail(path, at, "too long", "at most 292 years, and less where the field has a bound", n.String())
		return
	}
	v.SetInt(int64(duration))
}

// leadingZero begins an octal number for some readers of YAML.
var leadingZero = regexp.MustCompile(`^[-+]?0[0-9]`)

var integerRegexp = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

func (d *decoder) integer(n *node, v reflect.Value, path string, at source) {
	number, err := strconv.ParseInt(n.text, 10, strconv.IntSize)
	if n.kind != kindNumber || !integerRegexp.MatchString(n.text) {
		d.wrongType(path, at, "a whole number in decimal digits, without quotes", n)
		return
	}
	if err != nil {
		d.fail(path, at, "out of bounds", "a smaller number", n.String())
		return
	}
	v.SetInt(number)
}

func (d *decoder) float(n *node, v reflect.Value, path string, at source) {
	if n.kind != kindNumber || leadingZero.MatchString(n.text) {
		d.wrongType(path, at, "a number in decimal digits, without quotes", n)
		return
	}
	number, err := strconv.ParseFloat(n.text, 64)
	if err != nil {
		d.fail(path, at, "out of bounds", "a smaller number", n.String())
		return
	}
	v.SetFloat(number)
}

func (d *decoder) boolean(n *node, v reflect.Value, path string, at source) {
	if n.kind != kindBoolean {
		d.wrongType(path, at, "true or false, without quotes", n)
		return
	}
	if v.SetBool(strings.EqualFold(n.text, "true")); !v.Bool() {
		d.untrue[path] = at
	}
}

// validate adds what is wrong with the policies as a whole to what was wrong with their values, and
// returns all of it, in the order of the file, and of variables after it.
func (d *decoder) validate(p config.Policies, file string) error {
	if d.values >= maxFileValues {
		p = config.Policies{} // it is not all there
	}
	for _, err := range each(p.Validate()) {
		var fault *config.FieldError
		if !errors.As(err, &fault) {
			continue
		}
		fault.Path = inFile(fault.Path)
		fault.Wanted = strings.ReplaceAll(fault.Wanted, "Policies.Default", "default")
		if !d.failed[fault.Path] {
			from := d.sources[fault.Path]
			fault.Line, fault.Variable = from.line, from.variable
			d.errs = append(d.errs, fault)
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(p.Topics)) {
		path := inStruct(inMapping("topics", topic), "classic_queues")
		if at, written := d.untrue[path]; written && p.For(topic).ClassicQueues {
			d.fail(path, at, "does not undo that of the default", "left out, with the topic's own strategy in its "+
				"place: a topic with a strategy has quorum queues, unless it says otherwise", "false")
		}
	}
	return joined(d.errs, file)
}

// inFile is how the path of a field is written in a file, which begins below the policies. Names of
// topics are quoted, and stay.
func inFile(path string) string {
	var b strings.Builder
	before, quoted, escaped := '.', false, false
	for _, c := range strings.TrimPrefix(path, "Policies.") {
		switch {
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		case !quoted && unicode.IsUpper(c):
			if before != '.' {
				b.WriteByte('_')
			}
			c = unicode.ToLower(c)
		}
		b.WriteRune(c)
		before = c
	}

	return b.String()
}

// each gives the errors that were joined.
func each(err error) []error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	return nil
}

// joined sorts the errors by line and gives each the file's name.
func joined(errs []error, file string) error {
	place := func(err error) (fault *config.FieldError) {
		_ = errors.As(err, &fault) // they are all of this type
		return fault
	}
	slices.SortStableFunc(errs, func(a, b error) int {
		return cmp.Or(strings.Compare(place(a).Variable, place(b).Variable), cmp.Compare(place(a).Line, place(b).Line))
	})
	for _, err := range errs {
		if fault := place(err); fault.Variable == "" {
			fault.File = file
		}
	}
	return errors.Join(errs...)
}
