package policyfile

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/amqpretry/watermill-retry/config"
)

// Variables are AMQPRETRY__DEFAULT__FIELD and AMQPRETRY__TOPICS__TOPIC__FIELD.
const (
	variableSeparator = "__"
	variablePrefix    = "AMQPRETRY" + variableSeparator
)

// Override returns the policies with single fields replaced by what variables say, in the form of
// os.Environ:
//
//	AMQPRETRY__DEFAULT__MAX_AGE=10m
//	AMQPRETRY__TOPICS__ORDERS_CREATED__BACKOFF__MAX=1m  (of the topic "orders.created")
//	AMQPRETRY__TOPICS__PAYMENTS__DELAYS=1s,5s,30s
//
// Topic is a key of Topics, in upper case and with _ for all that is neither a letter of ASCII nor
// a digit: for several in a row one, for those at the ends none. The value null leaves the field
// out; an empty one is an error. So is a variable with this prefix that is no field's. Others are
// not looked at.
//
// It validates the result, and reports all problems in one error, as joined [*config.FieldError]s:
// with the variable, where one is to blame. [Load] has called it already; it is for policies that
// come from elsewhere. It is pure.
func Override(p config.Policies, environ []string) (config.Policies, error) {
	d := newDecoder()
	p = d.override(p, environ)
	if err := d.validate(p, ""); err != nil {
		return config.Policies{}, err
	}
	return p, nil
}

func (d *decoder) override(p config.Policies, environ []string) config.Policies {
	p.Topics = maps.Clone(p.Topics)
	for _, assignment := range environ {
		variable, text, _ := strings.Cut(assignment, "=")
		if path, ok := strings.CutPrefix(variable, variablePrefix); ok {
			d.variable(&p, variable, strings.Split(path, variableSeparator), text)
		}
	}
	return p
}

// variable sets the field that a variable names.
func (d *decoder) variable(p *config.Policies, name string, segments []string, text string) {
	at := source{variable: name}
	segment, rest := segments[0], segments[1:]
	switch {
	case segment == "DEFAULT":
		d.set(reflect.ValueOf(&p.Default).Elem(), "default", rest, text, at)
	case segment == "TOPICS" && len(rest) > 0:
		key, ok := d.topic(slices.Sorted(maps.Keys(p.Topics)), rest[0], at)
		if !ok {
			return
		}
		policy := p.Topics[key]
		d.set(reflect.ValueOf(&policy).Elem(), inMapping("topics", key), rest[1:], text, at)
		p.Topics[key] = policy
	default:
		d.fail("", at, "unknown variable", "AMQPRETRY__DEFAULT__FIELD or AMQPRETRY__TOPICS__TOPIC__FIELD",
			strconv.Quote(text))
	}
}

// topic finds the key of Topics that a segment spells.
func (d *decoder) topic(keys []string, segment string, at source) (key string, ok bool) {
	var found, known []string
	for _, key := range keys {
		spelled := spelling(key)
		if spelled == "" {
			continue // it cannot be named
		}
		if !slices.Contains(known, spelled) {
			known = append(known, spelled)
		}
		if spelled == segment {
			found = append(found, key)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], true
	case len(found) > 1:
		d.fail("", at, "topics of the same spelling", "about one topic; change these in the file",
			fmt.Sprintf("%q", found))
	case len(known) == 0:
		d.fail("", at, "unknown topic "+segment, "about DEFAULT, as no topic has a policy of its own", "")
	default:
		problem, wanted := unknown("topic "+segment, segment, known)
		d.fail("", at, problem, wanted, "")
	}
	return "", false
}

var notSpelled = regexp.MustCompile(`[^A-Z0-9]+`)

// spelling of a topic in a variable. It has no double underscore, so that segments can be told
// apart.
func spelling(topic string) string {
	return strings.Trim(notSpelled.ReplaceAllString(strings.ToUpper(topic), "_"), "_")
}

// set the field below v to which the segments lead.
func (d *decoder) set(v reflect.Value, path string, segments []string, text string, at source) {
	if v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[config.ErrorMatch]() {
		fields := fieldsOf(v.Type())
		known := names(fields)
		for i := range known {
			known[i] = strings.ToUpper(known[i])
		}
		if len(segments) == 0 {
			d.fail("", at, "not a single field", "continued with "+variableSeparator+" and one of "+
				strings.Join(known, ", "), strconv.Quote(text))
			return
		}
		i := slices.Index(known, segments[0])
		if i < 0 {
			problem, wanted := unknown("field "+segments[0], segments[0], known)
			d.fail("", at, problem, wanted, "")
			return
		}
		if v.IsZero() {
			d.mark(v.Type(), path, at) // what is missing in it, is missing because of this variable
		}
		d.set(v.Field(fields[i].index), inStruct(path, fields[i].name), segments[1:], text, at)
		return
	}
	switch n := plain(text, 0); {
	case len(segments) > 0:
		d.fail("", at, "nothing is below "+path, "without "+variableSeparator+
			strings.Join(segments, variableSeparator), "")
	case text == "":
		d.fail(path, at, "empty", "a value, null to leave the field out, or a variable that is not set", "")
	case n.kind == kindNull:
		v.SetZero()
		d.mark(v.Type(), path, at)
	case v.Kind() == reflect.Slice:
		list := &node{kind: kindList}
		for item := range strings.SplitSeq(text, ",") {
			list.items = append(list.items, plain(strings.TrimSpace(item), 0))
		}
		d.decode(list, v, path, at)
	default:
		d.decode(n, v, path, at)
	}
}
