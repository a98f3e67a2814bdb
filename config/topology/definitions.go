package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// MainQueue is a durable main queue as its own service declares it, with what leads to it, and the
// plan for its retries.
type MainQueue struct {
	// Plan for the retries of the queue, which it names.
	Plan Plan
	// Arguments of the main queue.
	Arguments amqp.Table
	// Exchanges to which publishers publish; not the default exchange, which is always there.
	Exchanges []Exchange
	// Bindings of these exchanges.
	Bindings []Binding
}

// Definitions is a file for `rabbitmqctl import_definitions`, with which an operator provisions a
// virtual host: everything that the services of these main queues would declare, so that a service
// that declares nothing works with it, and one that declares finds no conflict. It has exchanges,
// queues and bindings, and nothing else: no users, no policies.
//
// Objects come in the order of the main queues; what several of them share comes once. The broker
// leaves alone what is there already under the same name, whatever its arguments.
//
// It reports everything at once that cannot be written, or collides.
func Definitions(vhost string, queues ...MainQueue) ([]byte, error) {
	d := definitions{vhost: vhost, known: map[string]any{}, exchanges: []exchangeDefinition{},
		queues: []queueDefinition{}, bindings: []bindingDefinition{}}
	d.text("virtual host", vhost)

	plans := make([]Plan, len(queues))
	for i, q := range queues {
		plans[i] = q.Plan
		d.mainQueue(q)
	}
	d.mainExchanges(queues)
	if err := errors.Join(append([]error{Check(plans...)}, d.errs...)...); err != nil {
		return nil, err
	}

	var file bytes.Buffer
	encoder := json.NewEncoder(&file)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(struct {
		Exchanges []exchangeDefinition `json:"exchanges"`
		Queues    []queueDefinition    `json:"queues"`
		Bindings  []bindingDefinition  `json:"bindings"`
	}{d.exchanges, d.queues, d.bindings})
	return file.Bytes(), err
}

type exchangeDefinition struct {
	Name       string         `json:"name"`
	Vhost      string         `json:"vhost"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
}

type queueDefinition struct {
	Name       string         `json:"name"`
	Vhost      string         `json:"vhost"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Arguments  map[string]any `json:"arguments"`
}

type bindingDefinition struct {
	Source          string         `json:"source"`
	Vhost           string         `json:"vhost"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"`
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
}

// definitions collects what is to be written and what is wrong with it.
type definitions struct {
	vhost     string
	exchanges []exchangeDefinition
	queues    []queueDefinition
	bindings  []bindingDefinition
	known     map[string]any // all of these, by what tells them apart
	errs      []error
}

func (d *definitions) mainQueue(q MainQueue) {
	if q.Plan.Ladder != nil {
		d.plan(q.Plan.Ladder.Shared())
	}
	if q.Plan.Queue != "" { // else it is a part of a ladder
		d.strategy(q)
		d.queue(q.Plan.Queue, q.Arguments)
	}
	for _, x := range q.Exchanges {
		d.exchange(x)
	}
	for _, b := range q.Bindings {
		d.binding(b)
	}
	d.plan(q.Plan)
}

// strategy refuses a main queue without what its strategy needs, where a policy of the broker
// cannot give it: rejected messages would be lost.
func (d *definitions) strategy(q MainQueue) {
	if q.Plan.Strategy != config.StrategyCycle {
		return
	}
	object := fmt.Sprintf("queue %q.arguments", q.Plan.Queue)
	for _, key := range slices.Sorted(maps.Keys(q.Plan.MainArguments)) {
		if wanted := q.Plan.MainArguments[key]; !rabbitmq.SameArgument(q.Arguments[key], wanted) {
			d.wrong(fmt.Sprintf("%s[%q]", object, key), fmt.Sprintf("not as the strategy %s needs it", q.Plan.Strategy),
				fmt.Sprintf("%#v, as Plan.WithMainArguments adds it", wanted), fmt.Sprintf("%#v", q.Arguments[key]))
		}
	}
	for _, key := range q.Plan.MainConflicts(q.Arguments) {
		if _, needed := q.Plan.MainArguments[key]; !needed {
			d.wrong(fmt.Sprintf("%s[%q]", object, key), fmt.Sprintf("not possible with the strategy %s",
				q.Plan.Strategy),
				"left out", fmt.Sprintf("%#v", q.Arguments[key]))
		}
	}
}

func (d *definitions) plan(p Plan) {
	for _, x := range p.Exchanges {
		d.exchange(x)
	}
	for _, q := range p.Queues {
		d.queue(q.Name, q.Arguments)
	}
	for _, b := range p.Bindings {
		d.binding(b)
	}
}

// mainExchanges finds exchanges of publishers that are also retry exchanges: what is published to
// them would be lost.
func (d *definitions) mainExchanges(queues []MainQueue) {
	owners := map[string][]string{} // main queues, by the names of their plans' exchanges
	for _, q := range queues {
		for _, x := range q.Plan.Exchanges {
			owners[x.Name] = append(owners[x.Name], q.Plan.Queue)
		}
	}

	for _, q := range queues {
		for _, x := range q.Exchanges {
			for _, owner := range owners[x.Name] {
				d.errs = append(d.errs, &NameError{Queue: owner, Object: "retry exchange", Name: x.Name,
					Problem: "is the exchange that publishers of queue " + strconv.Quote(q.Plan.Queue) +
						" publish to; give another name through Names"})
			}
		}
	}
}

func (d *definitions) exchange(x Exchange) {
	if strings.HasPrefix(x.Name, "amq.") {
		return // the broker's own: always there, and never imported
	}
	object := fmt.Sprintf("exchange %q", x.Name)
	d.text(object, x.Name)
	if x.Type == "" {
		d.wrong(object, "has no type", "such as fanout, direct, topic or headers", `""`)
	}
	add(d, object, object, &d.exchanges, exchangeDefinition{
		Name: x.Name, Vhost: d.vhost, Type: x.Type, Durable: x.Durable, AutoDelete: x.AutoDelete, Internal: x.Internal,
		Arguments: d.table(object+".arguments", x.Arguments),
	})
}

func (d *definitions) queue(name string, arguments amqp.Table) {
	object := fmt.Sprintf("queue %q", name)
	add(d, object, object, &d.queues, queueDefinition{
		Name: name, Vhost: d.vhost, Durable: true, Arguments: d.table(object+".arguments", arguments),
	})
}

func (d *definitions) binding(b Binding) {
	object, kind := fmt.Sprintf("binding of queue %q to exchange %q", b.Queue, b.Exchange), rabbitmq.KindQueue
	if b.ToExchange != "" {
		object = fmt.Sprintf("binding of exchange %q to exchange %q", b.ToExchange, b.Exchange)
		kind = rabbitmq.KindExchange
	}
	d.text(object+".routing_key", b.Key)
	one := bindingDefinition{
		Source: b.Exchange, Vhost: d.vhost, Destination: b.Queue + b.ToExchange, DestinationType: kind,
		RoutingKey: b.Key, Arguments: d.table(object+".arguments", b.Arguments),
	}
	add(d, object, fmt.Sprintf("%#v", one), &d.bindings, one)
}

// add adds what is not there yet under its key. The same object in different ways is an error.
func add[T any](d *definitions, object, key string, to *[]T, one T) {
	other, twice := d.known[key]
	switch {
	case !twice:
		d.known[key] = one
		*to = append(*to, one)
	case !reflect.DeepEqual(other, one):
		d.wrong(object, "is defined in two ways", "the same for all who use it", fmt.Sprintf("%+v and %+v", other, one))
	}
}

func (d *definitions) wrong(path, problem, wanted, found string) {
	d.errs = append(d.errs, &config.FieldError{Path: path, Problem: problem, Wanted: wanted, Found: found})
}

// text checks what is not a name of the plan, which has been checked. JSON would silently replace
// bytes that are not UTF-8.
func (d *definitions) text(path, text string) {
	if !utf8.ValidString(text) || len(text) > maxNameBytes {
		d.wrong(path, "cannot be written", fmt.Sprintf("valid UTF-8 of at most %d bytes", maxNameBytes),
			strconv.Quote(text))
	}
}

// table is a table whose values the broker reads from JSON as it reads them from AMQP.
func (d *definitions) table(path string, t amqp.Table) map[string]any {
	values := make(map[string]any, len(t))
	for _, key := range slices.Sorted(maps.Keys(t)) {
		values[key] = d.value(fmt.Sprintf("%s[%q]", path, key), t[key])
	}
	return values
}

func (d *definitions) value(path string, v any) any {
	if n, ok := header.Integer(v); ok {
		return n
	}
	switch v := v.(type) {
	case bool:
		return v
	case string:
		if utf8.ValidString(v) {
			return v
		}
	case float32:
		return d.value(path, float64(v))
	case float64:
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			return float(v)
		}
	case amqp.Table:
		return d.table(path, v)
	case []any:
		values := make([]any, len(v))
		for i := range v {
			values[i] = d.value(fmt.Sprintf("%s[%d]", path, i), v[i])
		}
		return values
	}
	d.wrong(path, "cannot be written to a definitions file", "text in UTF-8, a number, a bool, a list or a table of "+
		"such", fmt.Sprintf("%#v", v))
	return nil
}

// float stays one in JSON: 5 would come out as an integer.
func float(v float64) json.Number {
	s := strconv.FormatFloat(v, 'e', -1, 64)
	if !strings.Contains(s, ".") { // Erlang wants one
		s = strings.Replace(s, "e", ".0e", 1)
	}
	return json.Number(s)
}
