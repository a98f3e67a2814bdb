package manifest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// The resources of the provider.
const (
	terraformExchange = "rabbitmq_exchange"
	terraformQueue    = "rabbitmq_queue"
	terraformBinding  = "rabbitmq_binding"
	terraformPolicy   = "rabbitmq_policy"
)

// Terraform writes resources of the provider cyrilgdn/rabbitmq. Terraform refuses to destroy the
// queues. It reports everything at once that the provider would not do as it is written.
func (t Topology) Terraform() (string, error) {
	h := hcl{labels: map[string]string{}, unfit: map[string][]string{}}
	for _, x := range t.Exchanges {
		h.named(terraformExchange, x.VHost, x.Name)
		h.block("  ", "settings", pair{"type", hclText(x.Type)}, pair{"durable", hclBool(x.Durable)},
			pair{"auto_delete", hclBool(x.AutoDelete)}, pair{"arguments", hclObject("    ", x.Arguments)})
		h.WriteString("}\n")
	}
	for _, q := range t.Queues {
		arguments := maps.Clone(q.Arguments)
		if arguments[amqp091.QueueTypeArg] == nil {
			// Brokers add it to a queue without a type, which Terraform would want to replace.
			arguments[amqp091.QueueTypeArg] = amqp091.QueueTypeClassic
		}
		h.named(terraformQueue, q.VHost, q.Name)
		h.block("  ", "settings", pair{"durable", hclBool(q.Durable)}, pair{"auto_delete", hclBool(q.AutoDelete)},
			pair{"arguments_json", hclJSON("    ", arguments)})
		h.block("  ", "lifecycle", pair{"prevent_destroy", "true"})
		h.WriteString("}\n")
	}
	for _, b := range t.Bindings {
		h.binding(b)
	}
	for _, p := range t.Policies {
		h.named(terraformPolicy, p.VHost, p.Name)
		for _, key := range sorted(p.Definition) {
			value, _ := p.Definition[key].(string)
			if _, err := strconv.ParseInt(value, 10, 64); err == nil {
				h.refuse("the provider sends a number in a policy as a number", value)
			}
		}
		h.block("  ", "policy", pair{"pattern", hclText(p.Pattern)}, pair{"priority", strconv.Itoa(p.Priority)},
			pair{"apply_to", hclText(p.ApplyTo)}, pair{"definition", hclObject("    ", p.Definition)})
		h.WriteString("}\n")
	}

	var errs []error
	for _, why := range slices.Sorted(maps.Keys(h.unfit)) {
		errs = append(errs, fmt.Errorf("cannot write names for Terraform: %s; use others, or another format: %s", why,
			strings.Join(h.unfit[why], ", ")))
	}

	return h.String(), errors.Join(errs...)
}

// hcl is a configuration of Terraform, and what the provider could not do with it.
type hcl struct {
	strings.Builder
	// labels are the resources of exchanges and queues, to which bindings refer.
	labels map[string]string
	// unfit are names that the provider could not keep, by the reason.
	unfit map[string][]string
}

func (h *hcl) refuse(why, name string) {
	if name = strconv.Quote(name); !slices.Contains(h.unfit[why], name) {
		h.unfit[why] = append(h.unfit[why], name)
	}
}

// named begins a resource with a name, which is a part of its ID.
func (h *hcl) named(resource, vhost, name string) {
	for _, s := range []string{vhost, name} {
		if strings.Contains(s, "@") {
			h.refuse("the provider separates names from virtual hosts by @", s)
		}
		if strings.ContainsFunc(s, unicode.IsMark) {
			h.refuse("Terraform normalizes combining characters", s)
		}
	}
	label := label(resourceName(vhost, name))
	h.labels[resource+name] = resource + "." + label
	h.begin(resource, label, pair{"name", hclText(name)}, pair{"vhost", hclText(vhost)})
}

// binding refers to what it binds, which Terraform creates before.
func (h *hcl) binding(b Binding) {
	for _, s := range []string{b.Source, b.Destination, b.RoutingKey} {
		if strings.Contains(s, "/") {
			h.refuse("the provider separates the parts of a binding by /", s)
		}
	}
	destination := terraformQueue
	if b.DestinationType == rabbitmq.KindExchange {
		destination = terraformExchange
	}
	h.begin(terraformBinding, label(b.resourceName()),
		pair{"source", h.reference(terraformExchange, b.Source)}, pair{"vhost", hclText(b.VHost)},
		pair{"destination", h.reference(destination, b.Destination)},
		pair{"destination_type", hclText(b.DestinationType)}, pair{"routing_key", hclText(b.RoutingKey)},
		pair{"arguments_json", hclJSON("  ", b.Arguments)})
	h.WriteString("}\n")
}

func (h *hcl) reference(resource, name string) string {
	if label, ok := h.labels[resource+name]; ok {
		return label + ".name"
	}

	return hclText(name)
}

func (h *hcl) begin(resource, label string, attributes ...pair) {
	if h.Len() > 0 {
		h.WriteString("\n")
	}
	fmt.Fprintf(h, "resource %q %q {\n", resource, label)
	h.attributes("  ", attributes)
}

func (h *hcl) block(indent, name string, attributes ...pair) {
	fmt.Fprintf(h, "\n%s%s {\n", indent, name)
	h.attributes(indent+"  ", attributes)
	fmt.Fprintf(h, "%s}\n", indent)
}

// pair is an attribute and its expression. One without an expression is left out.
type pair struct{ key, expression string }

// width is 0 for an expression of several lines.
func (p pair) width() int {
	if strings.Contains(p.expression, "\n") {
		return 0
	}

	return utf8.RuneCountInString(p.key)
}

// attributes writes them as terraform fmt does: the signs of equality are aligned, but for those
// before several lines.
func (h *hcl) attributes(indent string, all []pair) {
	all = slices.DeleteFunc(all, func(p pair) bool { return p.expression == "" })
	width := 0
	for _, p := range all {
		width = max(width, p.width())
	}
	for _, p := range all {
		fmt.Fprintf(h, "%s%-*s = %s\n", indent, min(width, p.width()*width), p.key, p.expression)
	}
}

// label is a resource's name as a label of Terraform. It has one dash or underscore for each dot.
func label(resourceName string) string {
	label := strings.ReplaceAll(resourceName, ".", "_")
	if label[0] >= '0' && label[0] <= '9' {
		label = "_" + label
	}

	return label
}

func hclBool(b bool) string {
	if !b {
		return "" // the provider's default
	}

	return "true"
}

// hclText is a text of which nothing is a template.
func hclText(text string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(quoted(text))
}

// hclJSON is an object as the text that the provider takes it for, with its numbers.
func hclJSON(indent string, a httpapi.Arguments) string {
	if len(a) == 0 {
		return ""
	}

	return "jsonencode(" + hclObject(indent, a) + ")"
}

func hclObject(indent string, a httpapi.Arguments) string {
	if len(a) == 0 {
		return ""
	}
	var object hcl
	attributes := make([]pair, 0, len(a))
	for _, key := range sorted(a) {
		value := fmt.Sprint(a[key])
		if text, ok := a[key].(string); ok {
			value = hclText(text)
		}
		attributes = append(attributes, pair{hclText(key), value})
	}
	object.attributes(indent+"  ", attributes)

	return "{\n" + object.String() + indent + "}"
}
