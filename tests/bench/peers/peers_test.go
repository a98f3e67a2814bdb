package peers

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"
)

// prefetch is everybody's.
const prefetch = 100

// peer is a client that makes failed messages wait on the broker. Its handler fails a message that
// has not waited yet, and succeeds with one that has: by what the client says about it, so that a
// message which the broker delivers again without having waited fails again.
type peer interface {
	// String is its name.
	String() string
	// arguments are those of the main queue.
	arguments(q queue) amqp091.Table
	// beside are the objects that it has beside the main queue.
	beside(q queue) objects
	// start begins to consume, and returns what ends that.
	start(b *testing.B, uri string, q queue, c *calls) (stop func())
}

// objects are what lies beside a main queue.
type objects struct {
	retry     string // where messages wait
	dead      string // where messages are that were given up; optional
	exchanges []string
}

// BenchmarkPeers has each client fail every message once, have it wait on the broker for a second,
// and succeed with it.
func BenchmarkPeers(b *testing.B) {
	peers := []peer{retrier{}, goRabbitMQ{}}
	notes := []string{"go-rabbitmq " + versionOf(b, "github.com/wagslane/go-rabbitmq") + " with amqp091-go " +
		versionOf(b, "github.com/rabbitmq/amqp091-go") + "."}
	node, err := newRascal(b)
	if err == nil {
		peers = append(peers, node)
		notes = append(notes, "rascal "+node.version+".")
	} else {
		notes = append(notes, "rascal is left out: "+err.Error()+".")
	}

	b.Run("return", func(b *testing.B) { benchmarkReturn(b, peers, notes) })
	b.Run("kill", func(b *testing.B) { benchmarkKill(b, peers, notes) })
}
