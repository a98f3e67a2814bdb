package manifest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// Read reads RabbitMQ definitions, the output of `terraform show -json` for a plan or a state, or
// manifests in YAML or JSON, of which it leaves out all but exchanges, queues, bindings and
// policies of the Messaging Topology Operator. file is for Where and for errors. Objects that name
// no virtual host are in vhost.
func Read(file string, data []byte, vhost string) (Topology, error) {
	r := reader{file: file, vhost: vhost}
	var err error
	var kind struct {
		APIVersion string          `json:"apiVersion"`
		Terraform  json.RawMessage `json:"format_version"`
		Exchanges  json.RawMessage `json:"exchanges"`
		Queues     json.RawMessage `json:"queues"`
	}
	isJSON := json.Unmarshal(data, &kind) == nil
	switch {
	case isJSON && kind.Terraform != nil:
		err = r.terraform(data)
	case isJSON && (kind.Exchanges != nil || kind.Queues != nil):
		err = r.definitions(data)
	case isJSON && kind.APIVersion == "":
		err = fmt.Errorf("no object has a known kind")
	default:
		err = r.manifests(data)
	}
	if err != nil {
		return Topology{}, fmt.Errorf("cannot read file %q: wanted RabbitMQ definitions, manifests of the Messaging Topology "+
			"Operator, or the output of 'terraform show -json'; found: %w", file, err)
	}

	return r.found, nil
}

// reader collects what a file has.
type reader struct {
	file, vhost string
	found       Topology
}

func (r *reader) where(format string, args ...any) string {
	return r.file + ":" + fmt.Sprintf(format, args...)
}

func (r *reader) definitions(data []byte) error {
	if err := json.Unmarshal(data, &r.found); err != nil {
		return err
	}
	t := r.found
	for i := range t.Exchanges {
		t.Exchanges[i].Where, t.Exchanges[i].VHost = r.where(" exchanges[%d]", i), cmp.Or(t.Exchanges[i].VHost, r.vhost)
	}
	for i := range t.Queues {
		t.Queues[i].Where, t.Queues[i].VHost = r.where(" queues[%d]", i), cmp.Or(t.Queues[i].VHost, r.vhost)
	}
	for i := range t.Bindings {
		t.Bindings[i].Where, t.Bindings[i].VHost = r.where(" bindings[%d]", i), cmp.Or(t.Bindings[i].VHost, r.vhost)
	}
	for i := range t.Policies {
		t.Policies[i].Where, t.Policies[i].VHost = r.where(" policies[%d]", i), cmp.Or(t.Policies[i].VHost, r.vhost)
	}

	return nil
}

// resource is one of the operator.
type resource struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []json.RawMessage `json:"items"`
	Spec       struct {
		Name            string            `json:"name"`
		VHost           string            `json:"vhost"`
		Type            string            `json:"type"`
		Durable         bool              `json:"durable"`
		AutoDelete      bool              `json:"autoDelete"`
		Source          string            `json:"source"`
		Destination     string            `json:"destination"`
		DestinationType string            `json:"destinationType"`
		RoutingKey      string            `json:"routingKey"`
		Arguments       httpapi.Arguments `json:"arguments"`
		Pattern         string            `json:"pattern"`
		ApplyTo         string            `json:"applyTo"`
		Priority        int               `json:"priority"`
		Definition      httpapi.Arguments `json:"definition"`
	} `json:"spec"`
}

func (r *reader) manifests(data []byte) error {
	stream, err := parser.ParseBytes(data, 0)
	if err != nil {
		return err
	}
	for _, document := range stream.Docs {
		mapping, ok := document.Body.(ast.MapNode)
		if !ok {
			if document.Body == nil || document.Body.Type() == ast.NullType {
				continue
			}
			return fmt.Errorf("line %d: no mapping", document.Body.GetToken().Position.Line)
		}
		var value any
		if err := yaml.NodeToValue(document.Body, &value); err != nil {
			return err
		}
		asJSON, err := json.Marshal(value)
		if err != nil {
			return err
		}
		line := 0
		if entries := mapping.MapRange(); entries.Next() {
			line = entries.Key().GetToken().Position.Line
		}
		if err := r.manifest(asJSON, r.where("%d", line)); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}

	return nil
}

func (r *reader) manifest(data []byte, where string) error {
	var o resource
	if err := json.Unmarshal(data, &o); err != nil {
		return err
	}
	for i, item := range o.Items {
		if err := r.manifest(item, fmt.Sprintf("%s items[%d]", where, i)); err != nil {
			return err
		}
	}
	if o.APIVersion != operatorAPI {
		return nil
	}
	s, t := o.Spec, &r.found
	vhost := cmp.Or(s.VHost, "/")
	where += " " + o.Kind
	switch o.Kind {
	case "Exchange":
		t.Exchanges = append(t.Exchanges, Exchange{Name: s.Name, VHost: vhost, Type: cmp.Or(s.Type, "direct"),
			Durable: s.Durable, AutoDelete: s.AutoDelete, Arguments: s.Arguments, Where: where})
	case "Queue":
		if s.Arguments == nil {
			s.Arguments = httpapi.Arguments{}
		}
		if s.Type != "" {
			s.Arguments[amqp091.QueueTypeArg] = s.Type
		}
		t.Queues = append(t.Queues, Queue{s.Name, vhost, s.Durable, s.AutoDelete, s.Arguments, where})
	case "Binding":
		t.Bindings = append(t.Bindings, Binding{s.Source, vhost, s.Destination, s.DestinationType, s.RoutingKey,
			s.Arguments, where})
	case "Policy":
		t.Policies = append(t.Policies, Policy{vhost, s.Name, s.Pattern, cmp.Or(s.ApplyTo, "all"), s.Priority,
			s.Definition, where})
	}

	return nil
}

// module is one of Terraform, with those in it.
type module struct {
	Resources []struct {
		Address string `json:"address"`
		Mode    string `json:"mode"`
		Type    string `json:"type"`
		Values  values `json:"values"`
	} `json:"resources"`
	Modules []module `json:"child_modules"`
}

// values are those of any resource of the provider.
type values struct {
	Name            string `json:"name"`
	VHost           string `json:"vhost"`
	Source          string `json:"source"`
	Destination     string `json:"destination"`
	DestinationType string `json:"destination_type"`
	RoutingKey      string `json:"routing_key"`
	arguments
	Settings []struct {
		Type       string `json:"type"`
		Durable    bool   `json:"durable"`
		AutoDelete bool   `json:"auto_delete"`
		arguments
	} `json:"settings"`
	Policy []struct {
		Pattern    string            `json:"pattern"`
		ApplyTo    string            `json:"apply_to"`
		Priority   int               `json:"priority"`
		Definition httpapi.Arguments `json:"definition"`
	} `json:"policy"`
}

type arguments struct {
	Arguments httpapi.Arguments `json:"arguments"`
	AsText    string            `json:"arguments_json"`
}

func (a arguments) of() (httpapi.Arguments, error) {
	if a.AsText == "" {
		return a.Arguments, nil
	}
	err := json.Unmarshal([]byte(a.AsText), &a.Arguments)

	return a.Arguments, err
}

func (r *reader) terraform(data []byte) error {
	type tree struct {
		Root module `json:"root_module"`
	}
	var file struct {
		Plan  tree `json:"planned_values"`
		State tree `json:"values"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return err
	}

	return errors.Join(r.module(file.Plan.Root), r.module(file.State.Root))
}

func (r *reader) module(m module) error {
	for _, o := range m.Resources {
		if o.Mode == "data" {
			continue
		}
		if err := r.resource(o.Type, o.Values, r.where(" %s", o.Address)); err != nil {
			return fmt.Errorf("%s: %w", o.Address, err)
		}
	}
	for _, child := range m.Modules {
		if err := r.module(child); err != nil {
			return err
		}
	}

	return nil
}

func (r *reader) resource(kind string, v values, where string) error {
	t, vhost := &r.found, cmp.Or(v.VHost, "/")
	found, err := v.of()
	if err != nil {
		return err
	}
	for _, s := range v.Settings {
		own, err := s.of()
		if err != nil {
			return err
		}
		switch kind {
		case terraformExchange:
			t.Exchanges = append(t.Exchanges, Exchange{Name: v.Name, VHost: vhost, Type: s.Type, Durable: s.Durable,
				AutoDelete: s.AutoDelete, Arguments: own, Where: where})
		case terraformQueue:
			t.Queues = append(t.Queues, Queue{v.Name, vhost, s.Durable, s.AutoDelete, own, where})
		}
	}
	if kind == terraformBinding {
		t.Bindings = append(t.Bindings, Binding{v.Source, vhost, v.Destination, v.DestinationType, v.RoutingKey, found,
			where})
	}
	for _, p := range v.Policy {
		if kind == terraformPolicy {
			t.Policies = append(t.Policies, Policy{vhost, v.Name, p.Pattern, p.ApplyTo, p.Priority,
				numbers(p.Definition), where})
		}
	}

	return nil
}

// numbers are what the provider makes of the texts of a policy.
func numbers(definition httpapi.Arguments) httpapi.Arguments {
	for key, value := range definition {
		if text, ok := value.(string); ok {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				definition[key] = n
			}
		}
	}

	return definition
}
