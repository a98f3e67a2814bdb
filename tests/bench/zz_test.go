package bench

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"

	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

func BenchmarkZZ(b *testing.B) {
	messages := report.Scaled(b, 100_000, 1000)
	allocs := func(f func() figures) figures {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := f()
		runtime.ReadMemStats(&after)
		r["allocs"] = float64(after.Mallocs-before.Mallocs)/float64(messages)
		return r
	}
	all := report.Compare(b,
		contender{"raw loop", func(b *testing.B) figures { return loopRaw(b, messages) }},
		contender{"library", func(b *testing.B) figures { return allocs(func() figures { return replay(b, messages, false) })}},
		contender{"library with undo file", func(b *testing.B) figures { return allocs(func() figures { return replay(b, messages, true)}) }},
	)
	for _, way := range []string{"library", "library with undo file"} {
		b.Logf("RATIO %s %.3f  %v", way, all.Ratio(way, "raw loop", "msg/s"), all.Median(way, "msg/s"))
	}
}

func BenchmarkZUndo(b *testing.B) {
	messages := report.Scaled(b, 100_000, 1000)
	q := withDeadLetters(b, messages)
	defer q.remove()
	client, err := dlq.Open(b.Context(), dlq.Config{URI: brokertest.URI(b), NoDeliveryLimitPolicy: true})
	require.NoError(b, err)
	file, err := os.Create(filepath.Join(b.TempDir(), "undo.jsonl"))
	require.NoError(b, err)
	prof, err := os.Create("/tmp/m/replay-undo.prof")
	require.NoError(b, err)
	require.NoError(b, pprof.StartCPUProfile(prof))
	_, err = client.Queue(q.main).Run(b.Context(), dlq.Plan{Kind: dlq.Replay, Undo: file})
	pprof.StopCPUProfile()
	require.NoError(b, err)
	prof.Close()
}
