package manifest

import (
	"fmt"
	"maps"
	"regexp"
	"strings"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// Cluster is where the resources of the Messaging Topology Operator belong.
type Cluster struct {
	// Name and Namespace of the RabbitmqCluster.
	Name, Namespace string
	// ResourceNamespace is that of the resources.
	ResourceNamespace string
}

const operatorAPI = "rabbitmq.com/v1beta1"

// field is a line of a manifest. Its value is a text, a number, a bool, []field or
// httpapi.Arguments.
type field struct {
	key   string
	value any
}

// Operator writes manifests. Queues have the deletion policy retain: to delete their resource
// deletes no messages.
func Operator(all []Object, c Cluster) string {
	var b strings.Builder
	for i, o := range all {
		if i > 0 {
			b.WriteString("---\n")
		}
		fields(&b, "", []field{
			{"apiVersion", operatorAPI},
			{"kind", o.Kind},
			{"metadata", []field{{"name", o.resourceName()}, {"namespace", c.ResourceNamespace}}},
			{"spec", append(o.spec(), field{"rabbitmqClusterReference", []field{{"name", c.Name},
				{"namespace", c.Namespace}}})},
		})
	}

	return b.String()
}

func (o Object) spec() []field {
	arguments, retained := maps.Clone(o.Arguments), ""
	if o.Kind == Queue {
		o.Type, _ = arguments[amqp091.QueueTypeArg].(string) // the operator makes the argument of the type
		delete(arguments, amqp091.QueueTypeArg)
		retained = "retain"
	}
	spec := []field{{"name", o.Name}, {"vhost", o.VHost}, {"type", o.Type}, {"durable", o.Durable},
		{"autoDelete", o.AutoDelete}, {"deletionPolicy", retained}, {"source", o.Source},
		{"destination", o.Destination}, {"destinationType", o.DestinationType}, {"routingKey", o.RoutingKey},
		{"arguments", arguments}}
	if o.Kind == Policy {
		spec = append(spec, field{"pattern", o.Pattern}, field{"applyTo", o.ApplyTo}, field{"priority", o.Priority},
			field{"definition", o.Definition})
	}

	return spec
}

// fields writes a mapping, without what is empty, or false by default.
func fields(b *strings.Builder, indent string, all []field) {
	for _, f := range all {
		switch v := f.value.(type) {
		case []field:
			fmt.Fprintf(b, "%s%s:\n", indent, f.key)
			fields(b, indent+"  ", v)
		case httpapi.Arguments:
			if len(v) > 0 {
				fmt.Fprintf(b, "%s%s:\n", indent, f.key)
			}
			for _, key := range sorted(v) {
				fmt.Fprintf(b, "%s  %s: %s\n", indent, scalar(key), scalar(v[key]))
			}
		default:
			if v != "" && v != false {
				fmt.Fprintf(b, "%s%s: %s\n", indent, f.key, scalar(v))
			}
		}
	}
}

var (
	plainText = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9./-]*$`)
	notText   = regexp.MustCompile(`(?i)^(null|true|false|yes|no|on|off|y|n)$`)
)

func scalar(value any) string {
	text, ok := value.(string)
	switch {
	case !ok:
		return fmt.Sprint(value)
	case plainText.MatchString(text) && !notText.MatchString(text):
		return text
	default:
		return quoted(text)
	}
}
