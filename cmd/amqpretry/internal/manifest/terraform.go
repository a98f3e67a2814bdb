package manifest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// resources are those of the provider, by the kind of object.
var resources = map[string]string{Exchange: "rabbitmq_exchange", Queue: "rabbitmq_queue",
	Binding: "rabbitmq_binding", Policy: "rabbitmq_policy"}

// Terraform writes resources of the provider cyrilgdn/rabbitmq. Terraform refuses to destroy the
// queues. It reports all names at once that the provider would not keep.
func Terraform(all []Object) (string, error) {
	h := hcl{labels: map[string]string{}, unfit: map[string][]string{}}
	for i, o := range all {
		if i > 0 {
			h.WriteString("\n")
		}
		label := label(o.resourceName())
		fmt.Fprintf(&h, "resource %q %q {\n", resources[o.Kind], label)
		h.labels[o.Kind+o.Name] = resources[o.Kind] + "." + label
		h.body(o)
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

// bound are the kinds of what is bound.
var bound = map[string]string{rabbitmq.KindQueue: Queue, rabbitmq.KindExchange: Exchange}

// body refers to exchanges and queues that are bound, so that Terraform creates them before.
func (h *hcl) body(o Object) {
	h.check(o)
	if o.Kind == Binding {
		h.attributes("  ", []pair{{"source", h.reference(Exchange, o.Source)}, {"vhost", hclText(o.VHost)},
			{"destination", h.reference(bound[o.DestinationType], o.Destination)},
			{"destination_type", hclText(o.DestinationType)}, {"routing_key", hclText(o.RoutingKey)},
			{"arguments_json", hclJSON("  ", o.Arguments)}})
		return
	}
	h.attributes("  ", []pair{{"name", hclText(o.Name)}, {"vhost", hclText(o.VHost)}})
	switch o.Kind {
	case Exchange:
		h.block("settings", pair{"type", hclText(o.Type)}, pair{"durable", hclBool(o.Durable)},
			pair{"auto_delete", hclBool(o.AutoDelete)}, pair{"arguments", hclObject("    ", o.Arguments)})
	case Queue:
		arguments := maps.Clone(o.Arguments)
		if arguments[amqp091.QueueTypeArg] == nil {
			// Brokers add it to a queue without a type, which Terraform would want to replace.
			arguments[amqp091.QueueTypeArg] = amqp091.QueueTypeClassic
		}
		h.block("settings", pair{"durable", hclBool(o.Durable)}, pair{"auto_delete", hclBool(o.AutoDelete)},
			pair{"arguments_json", hclJSON("    ", arguments)})
		h.block("lifecycle", pair{"prevent_destroy", "true"})
	case Policy:
		h.block("policy", pair{"pattern", hclText(o.Pattern)}, pair{"priority", strconv.Itoa(o.Priority)},
			pair{"apply_to", hclText(o.ApplyTo)}, pair{"definition", hclObject("    ", o.Definition)})
	}
}

// check refuses names that the provider would not keep.
func (h *hcl) check(o Object) {
	for _, name := range []string{o.Name, o.VHost, o.Source, o.Destination, o.RoutingKey} {
		switch {
		case strings.ContainsFunc(name, unicode.IsMark):
			h.refuse("Terraform normalizes combining characters", name)
		case o.Kind != Binding && strings.Contains(name, "@"):
			h.refuse("the provider separates names from virtual hosts by @", name)
		case o.Kind == Binding && name != o.VHost && strings.Contains(name, "/"):
			h.refuse("the provider separates the parts of a binding by /", name)
		}
	}
}

func (h *hcl) reference(kind, name string) string {
	if label, ok := h.labels[kind+name]; ok {
		return label + ".name"
	}

	return hclText(name)
}

func (h *hcl) block(name string, attributes ...pair) {
	fmt.Fprintf(h, "\n  %s {\n", name)
	h.attributes("    ", attributes)
	h.WriteString("  }\n")
}

// pair is an attribute and its expression. One without an expression is left out.
type pair struct{ key, expression string }

// width is 0 for an expression of several lines.
func (p pair) width() int {
	if strings.Contains(p.expression, "\n") {
		return 0
	}

	return len(p.key)
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
