package manifest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// anyText has what means something to YAML, Terraform, Kubernetes and their hashes.
func anyText(t *rapid.T, name string) string {
	alphabet := []rune("aZ09._- :#'\"\\\n\t\r{}[],&*!|>%@`~?=$é日😀\x00\x1b\u0085\u2028\ufeff")
	return string(rapid.SliceOfN(rapid.SampledFrom(alphabet), 1, 8).Draw(t, name))
}

func anyObject(t *rapid.T) Object {
	arguments := func(name string) httpapi.Arguments {
		key := anyText(t, name)
		return httpapi.Arguments{key: rapid.OneOf(rapid.Just[any](int64(2147483647)), rapid.Just[any](true),
			rapid.Just[any](anyText(t, name+" text")), rapid.Just[any]("")).Draw(t, name+" value")}
	}
	o := Object{Kind: rapid.SampledFrom([]string{Exchange, Queue, Binding, Policy}).Draw(t, "kind"), VHost: "/",
		Arguments: httpapi.Arguments{}}
	switch o.Kind {
	case Exchange:
		o.Name, o.Type, o.Durable, o.Arguments = anyText(t, "name"), anyText(t, "type"), true, arguments("argument")
	case Queue:
		o.Name, o.AutoDelete, o.Arguments = anyText(t, "name"), true, arguments("argument")
	case Binding:
		o.Source, o.Destination, o.DestinationType = anyText(t, "source"), anyText(t, "destination"), "queue"
		o.RoutingKey, o.Arguments = anyText(t, "key"), arguments("argument")
	case Policy:
		o.Name, o.Pattern, o.ApplyTo, o.Priority = anyText(t, "name"), anyText(t, "pattern"), "queues", 7
		o.Definition = arguments("definition")
	}

	return o
}

// Read returns what Operator has written.
func TestOperatorRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wanted := []Object{anyObject(t), anyObject(t)}
		text := Operator(wanted, Cluster{Name: anyText(t, "cluster")})
		found, err := Read("file", []byte(text), "/")
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for i := range found {
			found[i].Where = ""
		}
		if !assert.ObjectsAreEqual(wanted, found) {
			t.Fatalf("%#v\n%#v\n%s", wanted, found, text)
		}
	})
}

// Names of resources and labels of Terraform are valid, and differ where objects do.
func TestResourceNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyObject(t), anyObject(t)
		a.VHost, b.VHost = rapid.SampledFrom([]string{"/", "a"}).Draw(t, "vhost"), "/"
		for _, o := range []Object{a, b} {
			name := o.resourceName()
			if !identifier.MatchString(name) || strings.ContainsAny(label(name), ". ") || label(name)[0] == '-' {
				t.Fatalf("%q", name)
			}
		}
		same := a.Kind == b.Kind && a.VHost == b.VHost && a.Name == b.Name && (a.Kind != Binding ||
			assert.ObjectsAreEqual(a, b))
		if a.Kind == b.Kind && same != (a.resourceName() == b.resourceName()) ||
			same != (a.Kind == b.Kind && label(a.resourceName()) == label(b.resourceName())) {
			t.Fatalf("%#v %#v", a, b)
		}
	})
	long := Object{Kind: Queue, VHost: "/", Name: strings.Repeat("a", 255)}
	assert.Less(t, len(long.resourceName()), 253)
}
