package policyfile

import (
	"bytes"
	"encoding/json"
	"reflect"
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

//go:generate go test -run TestSchemaFile -update

// about says what the schema says of a field beyond its type.
type about struct {
	title, text string
	def         any // what it is when it is left out
	least, most any // of a number, or of the length of a list
}

// abouts of all fields, by their path in a policy. A test sees to it that none is missing.
var abouts = map[string]about{
	"mode": {"Mode", "retry; dead-letter: no retries, the first failure goes to the dead-letter queue; " +
		"off: hands off.", config.ModeRetry, nil, nil},
	"retries": {"Retries", "How often a failed message comes back. Left out: once per delay. Must be set " +
		"with a backoff.", nil, 0, config.MaxRetries},
	"delays": {"Delays", "The waits before retry 1, 2, …, each 1ms to 10 years; the last one repeats up to " +
		"retries. At most 64 different ones: each is a queue. Instead of backoff.",
		durationTexts(config.Default().Delays), nil, config.MaxRetries},
	"backoff":         {"Backoff", "Generates the delays. Instead of delays; needs retries.", nil, nil, nil},
	"backoff.kind":    {"Kind", "The rule by which the delays grow. Required.", nil, nil, nil},
	"backoff.initial": {"Initial", "The first delay. Required.", nil, nil, nil},
	"backoff.step": {"Step", "linear: by what each delay is longer than the one before. Left out: initial.", nil,
		nil, nil},
	"backoff.factor": {"Factor", "exponential: by what each delay is multiplied, 1 or more.", config.DefaultFactor, 0,
		nil},
	"backoff.max": {"Max", "The longest delay. Left out: no cap.", nil, nil, nil},
	"immediate": {"Immediate", "How often a failed handler is called again at once, before the first delayed retry.",
		0, 0, config.MaxImmediate},
	"jitter": {"Jitter", "The part of each delay that is random: with 0.2 a delay of 30s is 24s to 30s.", 0,
		0, 1},
	"max_age": {"Max age", "The age at which a message expires. Left out: never, but for its own expiration.", nil,
		nil, nil},
	"on_expiry": {"On expiry", "Where an expired message goes: dead-letter, or drop to forget it.",
		config.ExpiryDeadLetter, nil, nil},
	"max_postpone": {"Max postpone", "The age up to which a message can be postponed, and the longest wait that an " +
		"error can ask for.", config.FormatDelay(config.DefaultMaxPostpone), nil, nil},
	"retry_only": {"Retry only", "The errors that are worth a retry; every other one goes to the dead-letter queue " +
		"at once. Go types, as dead letters show them.", nil, nil, nil},
	"never_retry": {"Never retry", "Errors that go to the dead-letter queue at once. Go types, as dead letters show " +
		"them.", nil, nil, nil},
	"strategy": {"Strategy", "How failed messages come back. queues: a copy waits in a retry queue, one for each " +
		"delay; shared: in one of a set for all main queues; ladder: in a ladder, for any delay; cycle: the broker " +
		"sends a rejected message to a retry queue; redelivery: it delivers it again at once; native: after a " +
		"delay, from RabbitMQ 4.3 on.", config.StrategyQueues, nil, nil},
	"classic_queues": {"Classic queues", "Whether the retry queues are classic ones, which are lighter and can lose " +
		"messages.", false, nil, nil},
	"ladder": {"Ladder", "What messages wait in with the strategy ladder. All that use one share its queues.", nil,
		nil, nil},
	"ladder.prefix": {"Prefix", "Of the names of its exchanges and queues.", config.RetryLadder().Prefix, nil, nil},
	"ladder.unit": {"Unit", "The shortest delay, to whose multiples all others are rounded up, 1ms to 1h.",
		config.FormatDelay(config.RetryLadder().Unit), nil, nil},
	"ladder.radix": {"Radix", "How many different digits there are: a queue for each but 0 at each level.",
		config.RetryLadder().Radix, 0, 16},
	"ladder.levels": {"Levels", "How many digits a delay has.", config.RetryLadder().Levels, 0, 32},
	"protect": {"Protect", "What keeps a quorum main queue from dropping messages by itself: arguments declares " +
		"it so, policy says that the operator has seen to it.", config.ProtectionNone, nil, nil},
	"crash_limit": {"Crash limit", "The deliveries without an answer that count as a failed attempt.",
		config.Default().CrashLimit, 0, config.MaxCrashLimit},
}

func durationTexts(ds []time.Duration) []string {
	texts := make([]string, len(ds))
	for i, d := range ds {
		texts[i] = config.FormatDelay(d)
	}
	return texts
}

const (
	schemaDialect = "https://json-schema.org/draft/2020-12/schema"
	schemaID      = "https://raw.githubusercontent.com/amqpretry/watermill-retry/main/config/policyfile/policies.schema.json" //nolint:lll // an address
)

// schema is what is used of JSON Schema.
type schema struct {
	Dialect              string             `json:"$schema,omitempty"`
	ID                   string             `json:"$id,omitempty"`
	Title                string             `json:"title,omitempty"`
	Description          string             `json:"description,omitempty"`
	Ref                  string             `json:"$ref,omitempty"`
	Type                 []string           `json:"type,omitempty"`
	Enum                 []any              `json:"enum,omitempty"`
	Default              any                `json:"default,omitempty"`
	Minimum              any                `json:"minimum,omitempty"`
	Maximum              any                `json:"maximum,omitempty"`
	Pattern              string             `json:"pattern,omitempty"`
	Items                *schema            `json:"items,omitempty"`
	MaxItems             any                `json:"maxItems,omitempty"`
	Properties           map[string]*schema `json:"properties,omitempty"`
	PatternProperties    map[string]*schema `json:"patternProperties,omitempty"`
	PropertyNames        *schema            `json:"propertyNames,omitempty"`
	MinLength            int                `json:"minLength,omitempty"`
	AdditionalProperties any                `json:"additionalProperties,omitempty"` // a schema, or false
	Defs                 map[string]*schema `json:"$defs,omitempty"`
}

// JSONSchema is the schema of policy files, for editors and other checks: policies.schema.json in this directory. It
// knows names, types, choices and the bounds of numbers. How long a duration may be, which error types make sense, and
// what concerns several fields, such as a backoff without retries, only Parse knows.
func JSONSchema() []byte {
	root := schema{
		Dialect: schemaDialect, ID: schemaID,
		Title:       "Policies",
		Description: "Retries and dead-letter queues of github.com/amqpretry/watermill-retry, by topic.",
		Type:        orNull("object"),
		Properties: map[string]*schema{
			"$schema": {Description: "What an editor checks the file against."},
			"default": {Ref: "#/$defs/policy", Description: "For all topics that are not in topics."},
			"topics": {
				Description: "By topic or glob: * is any characters or none, ? is one. A topic's own name comes " +
					"first, then the glob with the most literal characters. What a policy leaves out is taken from " +
					"the default; 0 and empty lists say that there is to be none.",
				Type: orNull("object"), PropertyNames: &schema{MinLength: 1},
				AdditionalProperties: &schema{Ref: "#/$defs/policy"},
			},
		},
		PatternProperties:    map[string]*schema{"^x-": {Description: "A place for anchors; not looked at."}},
		AdditionalProperties: false,
		Defs:                 map[string]*schema{"policy": structSchema(reflect.TypeFor[config.Policy](), "")},
	}
	root.Defs["policy"].Title = "Policy"
	root.Defs["policy"].Description = "What happens to a message whose handler fails. Everything can be left out."
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(root); err != nil {
		panic(err) // of plain values
	}
	return text.Bytes()
}

// orNull allows null for every type, which leaves a field out.
func orNull(t string) []string { return []string{t, "null"} }

func structSchema(t reflect.Type, path string) *schema {
	s := &schema{Type: orNull("object"), Properties: map[string]*schema{}, AdditionalProperties: false}
	for _, f := range fieldsOf(t) {
		inside := inStruct(path, f.name)
		a := abouts[inside]
		p := valueSchema(t.Field(f.index).Type, inside)
		p.Title, p.Description, p.Default = a.title, a.text, a.def
		if p.Items != nil {
			p.MaxItems = a.most
		} else {
			p.Minimum, p.Maximum = a.least, a.most
		}
		s.Properties[f.name] = p
	}
	return s
}

func valueSchema(t reflect.Type, path string) *schema {
	value := reflect.Zero(t).Interface()
	if c, ok := value.(interface{ Choices() []string }); ok {
		s := &schema{}
		for _, text := range c.Choices() {
			s.Enum = append(s.Enum, text)
		}
		s.Enum = append(s.Enum, nil)
		return s
	}
	switch value.(type) {
	case time.Duration:
		return &schema{Type: orNull("string"), Pattern: durationPattern}
	case config.ErrorMatch:
		return &schema{Type: orNull("string"), Pattern: config.TypeNamePattern}
	case string:
		return &schema{Type: orNull("string")}
	case int:
		return &schema{Type: orNull("integer")}
	case float64:
		return &schema{Type: orNull("number")}
	case bool:
		return &schema{Type: orNull("boolean")}
	}
	switch t.Kind() {
	case reflect.Slice:
		items := valueSchema(t.Elem(), path)
		items.Type = items.Type[:1] // null is no item
		return &schema{Type: orNull("array"), Items: items}
	case reflect.Struct:
		return structSchema(t, path)
	default:
		panic("config: no schema for " + t.String()) // a field that was added without one
	}
}
