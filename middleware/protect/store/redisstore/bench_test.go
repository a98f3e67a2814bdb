package redisstore_test

import (
	"crypto/rand"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// BenchmarkClaims measures a Begin and a Commit beside the bare commands, SET NX PX and SET PX, on
// the same client.
func BenchmarkClaims(b *testing.B) {
	s, client, prefix := newStore(b)
	b.Run("bare", func(b *testing.B) {
		var keys counter
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				key := prefix + ":bare:" + keys.next()
				if err := client.SetNX(b.Context(), key, "c", time.Minute).Err(); err != nil {
					b.Error(err)
				}
				if err := client.Set(b.Context(), key, "d", time.Minute).Err(); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("store", func(b *testing.B) {
		var keys counter
		run := rand.Text()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c, err := s.Begin(b.Context(), "orders", run+"-"+keys.next(), time.Minute)
				if err != nil || c.State() != store.New {
					b.Error(c, err)

					return
				}
				if err := c.Commit(b.Context()); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

func BenchmarkUpdate(b *testing.B) {
	s, _, _ := newStore(b)
	for b.Loop() {
		add(b, s, "x")
	}
}

type counter struct{ n atomic.Int64 }

func (c *counter) next() string { return strconv.FormatInt(c.n.Add(1), 10) }
