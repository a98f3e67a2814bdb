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

// Topology is what a file has. The JSON of its fields is that of RabbitMQ definitions.
type Topology struct {
	Exchanges []Exchange `json:"exchanges"`
	Queues    []Queue    `json:"queues"`
	Bindings  []Binding  `json:"bindings"`
	Policies  []Policy   `json:"policies,omitempty"`
}

// Exchange is an exchange.
type Exchange struct {
	Name       string            `json:"name"`
	VHost      string            `json:"vhost"`
	Type       string            `json:"type"`
	Durable    bool              `json:"durable"`
	AutoDelete bool              `json:"auto_delete"`
	Internal   bool              `json:"internal"`
	Arguments  httpapi.Arguments `json:"arguments"`
	// Where it is in the file that it was read from.
	Where string `json:"-"`
}

// Queue is a queue. Its type is among the arguments.
type Queue struct {
	Name       string            `json:"name"`
	VHost      string            `json:"vhost"`
	Durable    bool              `json:"durable"`
	AutoDelete bool              `json:"auto_delete"`
	Arguments  httpapi.Arguments `json:"arguments"`
	Where      string            `json:"-"`
}

// Binding is a binding to a queue or to an exchange.
type Binding struct {
	Source          string            `json:"source"`
	VHost           string            `json:"vhost"`
	Destination     string            `json:"destination"`
	DestinationType string            `json:"destination_type"`
	RoutingKey      string            `json:"routing_key"`
	Arguments       httpapi.Arguments `json:"arguments"`
	Where           string            `json:"-"`
}

// Policy is a policy of the broker.
type Policy struct {
	VHost      string            `json:"vhost"`
	Name       string            `json:"name"`
	Pattern    string            `json:"pattern"`
	ApplyTo    string            `json:"apply-to"`
	Priority   int               `json:"priority"`
	Definition httpapi.Arguments `json:"definition"`
	Where      string            `json:"-"`
}

// New is the topology of main queues with these policies of the broker. Its errors are those of
// [topology.Definitions].
func New(vhost string, queues []topology.MainQueue, policies []topology.BrokerPolicy) (Topology, error) {
	var t Topology
	file, err := topology.Definitions(vhost, queues...)
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(file, &t); err != nil {
		return t, err
	}
	for _, p := range policies {
		one := Policy{VHost: p.Vhost, Name: p.Name, Pattern: p.Pattern, ApplyTo: "queues", Priority: p.Priority}
		if err := json.Unmarshal([]byte(p.Definition), &one.Definition); err != nil {
			return t, err
		}
		t.Policies = append(t.Policies, one)
	}

	return t, nil
}

// Definitions is the file for `rabbitmqctl import_definitions`.
func (t Topology) Definitions() (string, error) {
	var file bytes.Buffer
	encoder := json.NewEncoder(&file)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(t)

	return file.String(), err
}

// identifier is a text that is a DNS-1123 subdomain, and is its own name as a resource.
var identifier = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// identifierBytes leaves room for the hash in the 253 that Kubernetes takes.
const identifierBytes = 200

// resourceName is the name of a resource. The names of one kind differ if their identities do: any
// but a name of the virtual host / that is fit as it is ends with a hash of its identity.
func resourceName(vhost, name string, more ...any) string {
	if vhost == "/" && len(more) == 0 && len(name) <= identifierBytes && identifier.MatchString(name) {
		return name
	}
	hash := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", vhost, name, more))
	text := unfit.ReplaceAllString(strings.ToLower(name), "-")
	text = strings.Trim(text[:min(len(text), identifierBytes)], "-")

	return strings.TrimPrefix(fmt.Sprintf("%s-%x", text, hash[:5]), "-")
}

func (b Binding) resourceName() string {
	return resourceName(b.VHost, b.Source+" to "+b.Destination, b.DestinationType, b.RoutingKey,
		map[string]any(b.Arguments))
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
