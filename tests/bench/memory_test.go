package bench

import (
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// newBroker starts a broker whose memory can be seen. All of the benchmark then uses that one.
func newBroker(b *testing.B) *brokertest.Broker {
	b.Helper()
	broker := brokertest.Start(b)
	b.Setenv("AMQP_URI", broker.URI)

	return broker
}

// brokerMiB is what the broker's Erlang machine has in use once its garbage is collected.
func brokerMiB(b *testing.B, broker *brokertest.Broker) float64 {
	b.Helper()
	out := broker.Ctl("eval", "[erlang:garbage_collect(P) || P <- erlang:processes()], erlang:memory(total).")
	bytes, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	require.NoError(b, err)

	return bytes / (1 << 20)
}

// clientMiB is what the heap of this process has in use once its garbage is collected.
func clientMiB() float64 {
	runtime.GC()
	runtime.GC() // what finalizers and cleanups have let go of
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	return float64(m.HeapInuse) / (1 << 20)
}
