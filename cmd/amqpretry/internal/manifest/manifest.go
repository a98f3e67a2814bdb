// Package manifest writes and reads topologies as code: RabbitMQ definitions, resources of the
// Messaging Topology Operator for Kubernetes, and Terraform with the provider cyrilgdn/rabbitmq. It
// needs no broker.
package manifest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// The kinds of objects, as the operator calls them.
const (
	Exchange = "Exchange"
	Queue    = "Queue"
	Binding  = "Binding"
	Policy   = "Policy"
)

// Object is an exchange, a queue, a binding or a policy of the broker. The JSON of its fields is
// that of RabbitMQ definitions.
type Object struct {
	Kind string `json:"-"`
	// Where it is in the file that it was read from.
	Where string `json:"-"`

	Name  string `json:"name"`
	VHost string `json:"vhost"`
	// Type of an exchange. That of a queue is among the arguments.
	Type       string            `json:"type"`
	Durable    bool              `json:"durable"`
	AutoDelete bool              `json:"auto_delete"`
	Internal   bool              `json:"internal"`
	Arguments  httpapi.Arguments `json:"arguments"`

	Source          string `json:"source"`
	Destination     string `json:"destination"`
	DestinationType string `json:"destination_type"`
	RoutingKey      string `json:"routing_key"`

	Pattern    string            `json:"pattern"`
	ApplyTo    string            `json:"apply-to"`
	Priority   int               `json:"priority"`
	Definition httpapi.Arguments `json:"definition"`
}

// Definitions is the file for `rabbitmqctl import_definitions` of main queues with these policies
// of the broker.
func Definitions(vhost string, queues []topology.MainQueue, policies []topology.BrokerPolicy) ([]byte, error) {
	file, err := topology.Definitions(vhost, queues...)
	if err != nil || len(policies) == 0 {
		return file, err
	}
	type policy struct {
		VHost      string          `json:"vhost"`
		Name       string          `json:"name"`
		Pattern    string          `json:"pattern"`
		ApplyTo    string          `json:"apply-to"`
		Priority   int             `json:"priority"`
		Definition json.RawMessage `json:"definition"`
	}
	var all struct {
		Exchanges json.RawMessage `json:"exchanges"`
		Queues    json.RawMessage `json:"queues"`
		Bindings  json.RawMessage `json:"bindings"`
		Policies  []policy        `json:"policies"`
	}
	if err := json.Unmarshal(file, &all); err != nil {
		return nil, err
	}
	for _, p := range policies {
		all.Policies = append(all.Policies, policy{p.Vhost, p.Name, p.Pattern, "queues", p.Priority,
			json.RawMessage(p.Definition)})
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err = encoder.Encode(all)

	return b.Bytes(), err
}

// identifier is a text that is a DNS-1123 subdomain, and is its own name as a resource.
var identifier = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// identifierBytes leaves room for the hash in the 253 that Kubernetes takes.
const identifierBytes = 200

// resourceName is the name of a resource, and must not change: another name is another resource.
// The names of one kind differ if the objects do: any but a name in the virtual host / that is fit
// as it is ends with a hash.
func (o Object) resourceName() string {
	name, identity := o.Name, []any{o.VHost, o.Name}
	if o.Kind == Binding {
		name = o.Source + " to " + o.Destination
		identity = []any{o.VHost, o.Source, o.Destination, o.DestinationType, o.RoutingKey, map[string]any(o.Arguments)}
	}
	if o.VHost == "/" && len(name) <= identifierBytes && identifier.MatchString(name) {
		return name
	}
	hash := sha256.Sum256(fmt.Appendf(nil, "%q", identity))
	text := unfit.ReplaceAllString(strings.ToLower(name), "-")
	text = strings.Trim(text[:min(len(text), identifierBytes)], "-")

	return strings.TrimPrefix(fmt.Sprintf("%s-%x", text, hash[:5]), "-")
}

// quoted is a text in double quotes, with escapes that YAML and HCL have in common.
func quoted(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r > 0xffff && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')

	return b.String()
}

func sorted(a httpapi.Arguments) []string { return slices.Sorted(maps.Keys(a)) }
