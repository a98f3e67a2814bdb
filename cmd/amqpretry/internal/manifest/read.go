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
// manifests in YAML or JSON, of which it leaves out all but those of the Messaging Topology
// Operator. It returns what belongs to the virtual host. file is for Where and for errors.
func Read(file string, data []byte, vhost string) ([]Object, error) {
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
		err = errors.New("no object has a known kind")
	default:
		err = r.manifests(data)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read file %q: wanted RabbitMQ definitions, manifests of the Messaging Topology "+
			"Operator, or the output of 'terraform show -json'; found: %w", file, err)
	}

	return r.found, nil
}

// reader collects what a file has for a virtual host.
type reader struct {
	file, vhost string
	found       []Object
}

// add adds an object, whose virtual host is byDefault if it has none.
func (r *reader) add(kind, byDefault string, o Object, format string, args ...any) {
	if cmp.Or(o.VHost, byDefault) != r.vhost {
		return
	}
	o.Kind, o.VHost, o.Where = kind, r.vhost, r.file+":"+fmt.Sprintf(format, args...)
	if o.Arguments == nil {
		o.Arguments = httpapi.Arguments{}
	}
	if kind == Queue && o.Type != "" {
		o.Arguments[amqp091.QueueTypeArg], o.Type = o.Type, ""
	}
	r.found = append(r.found, o)
}

func (r *reader) definitions(data []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	for _, of := range [][2]string{{Exchange, "exchanges"}, {Queue, "queues"}, {Binding, "bindings"},
		{Policy, "policies"}} {
		var objects []Object
		if list := all[of[1]]; list != nil {
			if err := json.Unmarshal(list, &objects); err != nil {
				return fmt.Errorf("%s: %w", of[1], err)
			}
		}
		for i, o := range objects {
			r.add(of[0], r.vhost, o, " %s[%d]", of[1], i)
		}
	}

	return nil
}

// spec is an Object with the names of the operator.
type spec struct {
	Kind            string            `json:"-"`
	Where           string            `json:"-"`
	Name            string            `json:"name"`
	VHost           string            `json:"vhost"`
	Type            string            `json:"type"`
	Durable         bool              `json:"durable"`
	AutoDelete      bool              `json:"autoDelete"`
	Internal        bool              `json:"-"`
	Arguments       httpapi.Arguments `json:"arguments"`
	Source          string            `json:"source"`
	Destination     string            `json:"destination"`
	DestinationType string            `json:"destinationType"`
	RoutingKey      string            `json:"routingKey"`
	Pattern         string            `json:"pattern"`
	ApplyTo         string            `json:"applyTo"`
	Priority        int               `json:"priority"`
	Definition      httpapi.Arguments `json:"definition"`
}

func (r *reader) manifests(data []byte) error {
	stream, err := parser.ParseBytes(data, 0)
	if err != nil {
		return err
	}
	for _, document := range stream.Docs {
		body := document.Body
		if body == nil || body.Type() == ast.NullType {
			continue
		}
		line := body.GetToken().Position.Line
		var value any
		asJSON, err := []byte{}, yaml.NodeToValue(body, &value)
		if err == nil {
			asJSON, err = json.Marshal(value)
		}
		if err == nil {
			err = r.manifest(asJSON, strconv.Itoa(line))
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}

	return nil
}

func (r *reader) manifest(data []byte, where string) error {
	var o struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
		Spec       json.RawMessage   `json:"spec"`
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return err
	}
	for i, item := range o.Items {
		if err := r.manifest(item, fmt.Sprintf("%s items[%d]", where, i)); err != nil {
			return err
		}
	}
	if o.APIVersion != operatorAPI || resources[o.Kind] == "" {
		return nil
	}
	var s spec
	if err := json.Unmarshal(o.Spec, &s); err != nil {
		return err
	}
	r.add(o.Kind, "/", Object(s), "%s %s", where, o.Kind)

	return nil
}

// module is one of Terraform, with those in it.
type module struct {
	Resources []struct {
		Address string          `json:"address"`
		Mode    string          `json:"mode"`
		Type    string          `json:"type"`
		Values  json.RawMessage `json:"values"`
	} `json:"resources"`
	Modules []module `json:"child_modules"`
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

	return r.module(module{Modules: []module{file.Plan.Root, file.State.Root}})
}

func (r *reader) module(m module) error {
	for _, found := range m.Resources {
		for kind, resource := range resources {
			if found.Type != resource || found.Mode == "data" {
				continue
			}
			o, err := values(found.Values)
			if err != nil {
				return fmt.Errorf("%s: %w", found.Address, err)
			}
			r.add(kind, "/", o, " %s", found.Address)
		}
	}
	for _, child := range m.Modules {
		if err := r.module(child); err != nil {
			return err
		}
	}

	return nil
}

// values are an object with the names of the provider: some are in a block.
func values(data []byte) (Object, error) {
	var o Object
	var more struct {
		Settings []json.RawMessage `json:"settings"`
		Policy   []json.RawMessage `json:"policy"`
		ApplyTo  string            `json:"apply_to"`
		AsText   string            `json:"arguments_json"`
	}
	err := errors.Join(json.Unmarshal(data, &o), json.Unmarshal(data, &more))
	for _, block := range append(more.Settings, more.Policy...) {
		err = errors.Join(err, json.Unmarshal(block, &o), json.Unmarshal(block, &more))
	}
	if more.AsText != "" {
		err = errors.Join(err, json.Unmarshal([]byte(more.AsText), &o.Arguments))
	}
	o.ApplyTo = more.ApplyTo
	for key, value := range o.Definition { // texts, of which the provider makes numbers
		text, _ := value.(string)
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			o.Definition[key] = n
		}
	}

	return o, err
}
