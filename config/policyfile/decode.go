package policyfile

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

// decoder puts the values of a file into policies. It collects all errors.
type decoder struct {
	errs    []*config.FieldError
	anchors map[string]*node
	lines   map[string]int  // of the values that are written, by path
	failed  map[string]bool // paths of values that are no values
	values  int             // with those that aliases and merge keys repeat
}

func (d *decoder) fail(path string, line int, problem, wanted, found string) {
	d.failed[path] = true
	d.errs = append(d.errs,
		&config.FieldError{Line: line, Path: path, Problem: problem, Wanted: wanted,
			Found: shortened(found)})
}

// spend counts a value, and is false where there are too many.
func (d *decoder) spend(line int) bool {
	if d.values++; d.values == maxFileValues {
		d.fail("", line, "too much", fmt.Sprintf("at most %d values, with those that aliases and merge keys repeat",
			maxFileValues), "more")
	}
	return d.values < maxFileValues
}

// Paths of what is in a struct or map, and in a list.
func inMapping(path, key string) string {
	switch {
	case path == "topics":
		return path + "[" + strconv.Quote(key) + "]"
	case !bareName.MatchString(key): // of an unknown key, which must not make the error a mess
		return path + "[" + shortened(strconv.Quote(key)) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

func inList(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

var bareName = regexp.MustCompile(`^[\w$<-]{1,64}$`)

// fieldNames of a struct, as files have them, in its order. The tags are the one table of them: the
// decoder, the formatter and the test of the schema go by it.
func fieldNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
	}
	return names
}

// decode sets v to what the node says. Null is a value that was left out.
func (d *decoder) decode(n *node, v reflect.Value, path string, line int) {
	if !d.spend(line) || n.kind == kindNull {
		return
	}
	d.lines[path] = line
	if form, ok := forms[v.Type()]; ok {
		d.scalar(n, v, form, path, line)
		return
	}
	wanted := map[reflect.Kind]kind{reflect.Struct: kindMapping, reflect.Map: kindMapping, reflect.Slice: kindList,
		reflect.String: kindText}[v.Kind()]
	switch {
	case wanted == kindText:
		d.scalar(n, v, textForm, path, line)
	case n.kind != wanted:
		d.fail(path, line, wrongType, string(wanted), n.String())
	case v.Kind() == reflect.Struct:
		d.fields(n, v, path)
	case v.Kind() == reflect.Map:
		topics := map[string]config.Policy{}
		for _, e := range n.entries {
			var policy config.Policy
			d.decode(e.value, reflect.ValueOf(&policy).Elem(), inMapping(path, e.key), e.line)
			topics[e.key] = policy
		}
		if len(topics) > 0 {
			v.Set(reflect.ValueOf(topics))
		}
	default:
		v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
		for i, item := range n.items {
			if item.kind == kindNull {
				d.fail(inList(path, i), item.line, wrongType, "a value", item.String())
			}
			d.decode(item, v.Index(i), inList(path, i), item.line)
		}
	}
}

func (d *decoder) fields(n *node, v reflect.Value, path string) {
	names := fieldNames(v.Type())
	for _, e := range n.entries {
		switch i, inside := slices.Index(names, e.key), inMapping(path, e.key); {
		case i >= 0:
			d.decode(e.value, v.Field(i), inside, e.line)
		case path == "" && (strings.HasPrefix(e.key, "x-") || e.key == "$schema"):
			// for anchors and notes; tells an editor what a JSON file is checked against
		default:
			if near := nearest(e.key, names); near != "" {
				d.fail(inside, e.line, "unknown key, did you mean "+near+"?", "", "")
			} else {
				d.fail(inside, e.line, "unknown key", "one of "+strings.Join(names, ", "), "")
			}
		}
	}
}

const wrongType = "wrong type"

// form is how a scalar must be written.
type form struct {
	kind    kind
	pattern *regexp.Regexp
	wanted  string
	parse   func(text string) (any, error)
}

// durationPattern is a Go duration without a sign: none that a policy has can be negative.
const durationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`

var (
	textForm = form{kindText, regexp.MustCompile(`(?s).`), "text that is not empty",
		func(text string) (any, error) { return text, nil }}
	forms = map[reflect.Type]form{
		reflect.TypeFor[config.ErrorMatch](): {textForm.kind, textForm.pattern, textForm.wanted,
			func(text string) (any, error) { return config.TypeName(text), nil }},
		reflect.TypeFor[bool](): {kindBoolean, textForm.pattern, "true or false, without quotes",
			func(text string) (any, error) { return strings.EqualFold(text, "true"), nil }},
		reflect.TypeFor[time.Duration](): {kindText, regexp.MustCompile(durationPattern),
			"a duration with its units, such as 500ms, 30s, 1m30s or 24h (a day has no unit of its own)",
			func(text string) (any, error) { return time.ParseDuration(text) }},
		// Some readers of YAML take a number that begins with 0 for an octal one.
		reflect.TypeFor[int](): {kindNumber, regexp.MustCompile(`^(0|[1-9][0-9]*)$`),
			"a whole number in decimal digits, without sign and quotes",
			func(text string) (any, error) { return strconv.Atoi(text) }},
		reflect.TypeFor[float64](): {kindNumber, regexp.MustCompile(`^(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?$`),
			"a number in decimal digits, without sign and quotes",
			func(text string) (any, error) { return strconv.ParseFloat(text, 64) }},
	}
)

func (d *decoder) scalar(n *node, v reflect.Value, form form, path string, line int) {
	if n.kind != form.kind || !form.pattern.MatchString(n.text) {
		d.fail(path, line, wrongType, form.wanted, n.String())
		return
	}
	value, err := form.parse(n.text)
	if err != nil {
		d.fail(path, line, "out of bounds", "smaller", n.String())
		return
	}
	v.Set(reflect.ValueOf(value).Convert(v.Type()))
	// A 0 that is written for a topic says that there is to be none, whatever the default has.
	if field := path[strings.LastIndex(path, ".")+1:]; v.IsZero() && strings.HasPrefix(path, "topics") &&
		slices.Contains([]string{"immediate", "jitter", "max_age"}, field) {
		v.Set(reflect.ValueOf(config.None).Convert(v.Type()))
	}
}

// validate adds what is wrong with the policies as a whole to what is wrong with their values.
func (d *decoder) validate(p config.Policies) {
	if d.values >= maxFileValues {
		return // it is not all there
	}
	for _, err := range config.WithPath("", p.Validate()) {
		var fault *config.FieldError
		_ = errors.As(err, &fault) // they are all of this type
		path := inFile(strings.TrimPrefix(fault.Path, "."))
		if !d.failed[path] { // else it is told already
			d.fail(path, d.lineOf(path), fault.Problem, strings.ReplaceAll(fault.Wanted, "Policies.Default", "default"),
				fault.Found)
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(p.Topics)) {
		policy, path := p.Topics[topic], inMapping("topics", topic)+".classic_queues"
		if line := d.lines[path]; line > 0 && !d.failed[path] && !policy.ClassicQueues && p.For(topic).ClassicQueues {
			d.fail(path, line, "does not undo that of the default", "left out, with the topic's own strategy in its "+
				"place: a topic with a strategy has quorum queues, unless it says otherwise", "false")
		}
	}
}

// lineOf a value; of one that is missing the line of what it is missing from.
func (d *decoder) lineOf(path string) int {
	for ; path != ""; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
		if line, ok := d.lines[path]; ok {
			return line
		}
	}
	return d.lines[""]
}

var hump = regexp.MustCompile(`([a-z])([A-Z])`)

// inFile is how the path of a field is written in a file. Names of topics stay as they are.
func inFile(path string) string {
	path, topic := strings.TrimPrefix(path, "Policies."), ""
	if quoted, ok := strings.CutPrefix(path, "Topics["); ok {
		end := strings.LastIndex(quoted, `"]`) + len(`"]`)
		topic, path = "topics["+quoted[:end], quoted[end:]
	}
	return topic + strings.ToLower(hump.ReplaceAllString(path, "${1}_${2}"))
}

// nearest of the names to one that is none of them, or empty: the one that begins as it does.
func nearest(name string, names []string) (found string) {
	bare := func(name string) string { // maxAge, Max-Age and MAX_AGE are max_age
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(name))
	}
	least := max(3, len(name)/3)
	for _, n := range names {
		a, b, shared := bare(name), bare(n), 0
		for shared < min(len(a), len(b)) && a[shared] == b[shared] {
			shared++
		}
		if shared >= least {
			found, least = n, shared+1
		}
	}
	return found
}
