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
func (t Topology) Operator(c Cluster) string {
	var b strings.Builder
	write := func(kind, name string, spec ...field) {
		reference := []field{{"name", c.Name}, {"namespace", c.Namespace}}
		if b.Len() > 0 {
			b.WriteString("---\n")
		}
		fields(&b, "", []field{
			{"apiVersion", operatorAPI},
			{"kind", kind},
			{"metadata", []field{{"name", name}, {"namespace", c.ResourceNamespace}}},
			{"spec", append(spec, field{"rabbitmqClusterReference", reference})},
		})
	}
	for _, x := range t.Exchanges {
		write("Exchange", resourceName(x.VHost, x.Name), field{"name", x.Name}, field{"vhost", x.VHost},
			field{"type", x.Type}, field{"durable", x.Durable}, field{"autoDelete", x.AutoDelete},
			field{"arguments", x.Arguments})
	}
	for _, q := range t.Queues {
		arguments := maps.Clone(q.Arguments)
		queueType, _ := arguments[amqp091.QueueTypeArg].(string) // the operator makes the argument of the type
		delete(arguments, amqp091.QueueTypeArg)
		write("Queue", resourceName(q.VHost, q.Name), field{"name", q.Name}, field{"vhost", q.VHost},
			field{"type", queueType}, field{"durable", q.Durable}, field{"autoDelete", q.AutoDelete},
			field{"deletionPolicy", "retain"}, field{"arguments", arguments})
	}
	for _, o := range t.Bindings {
		write("Binding", o.resourceName(), field{"vhost", o.VHost}, field{"source", o.Source},
			field{"destination", o.Destination}, field{"destinationType", o.DestinationType},
			field{"routingKey", o.RoutingKey}, field{"arguments", o.Arguments})
	}
	for _, p := range t.Policies {
		write("Policy", resourceName(p.VHost, p.Name), field{"name", p.Name}, field{"vhost", p.VHost},
			field{"pattern", p.Pattern}, field{"applyTo", p.ApplyTo}, field{"priority", p.Priority},
			field{"definition", p.Definition})
	}

	return b.String()
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
