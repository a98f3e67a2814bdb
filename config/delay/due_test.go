package delay_test

import (
	"testing"
	"time"

	wmdelay "github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config/delay"
)

func TestDue(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 3, 4, 5, 6, 7, int(400*time.Millisecond), time.UTC)
	const ninth = "2026-03-04T05:06:09Z" // 1.6s later
	at := func(d time.Duration) time.Time { return now.Add(d) }
	last := at(2600*time.Millisecond - 1) // of that second
	for name, test := range map[string]struct {
		until, duration string
		due             time.Time
		none            bool
	}{
		"no delay":                     {none: true},
		"only for":                     {duration: "1.25s", due: at(1250 * time.Millisecond)},
		"only for, in the past":        {duration: "-3s", due: at(-3 * time.Second)},
		"only until":                   {until: ninth, due: at(1600 * time.Millisecond)},
		"both, at once":                {until: ninth, duration: "1.9s", due: at(1900 * time.Millisecond)},
		"both, in another zone":        {"2026-03-04T06:06:09+01:00", "1.9s", at(1900 * time.Millisecond), false},
		"both, published late":         {until: ninth, duration: "20s", due: last},
		"both, the clock is behind":    {until: ninth, duration: "1s", due: at(1600 * time.Millisecond)},
		"both, of an older message":    {"2026-03-04T05:00:00Z", "1m", at(-366400*time.Millisecond - 1), false},
		"a fraction that others wrote": {"2026-03-04T05:06:09.5Z", "1s", at(2100 * time.Millisecond), false},
		"a fraction, published late":   {until: "2026-03-04T05:06:09.5Z", duration: "1h", due: last},
		"the zero delay of Watermill":  {"0001-01-01T00:00:00Z", "0s", time.Time{}.Add(time.Second - 1), false},
		"longer than a duration can be": {"9000-01-01T00:00:00Z", "2562047h47m16.854775807s",
			time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC), false},
	} {
		metadata := message.Metadata{}
		if test.until != "" {
			metadata.Set(wmdelay.DelayedUntilKey, test.until)
		}
		if test.duration != "" {
			metadata.Set(wmdelay.DelayedForKey, test.duration)
		}
		due, delayed, err := delay.Due(metadata, now)
		require.NoError(t, err, name)
		assert.Equal(t, !test.none, delayed, name)
		assert.True(t, due.Equal(test.due), "%s: due in %s, want %s", name, due.Sub(now), test.due.Sub(now))
	}
}

func TestDue_Malformed(t *testing.T) {
	t.Parallel()

	for _, metadata := range []message.Metadata{
		{wmdelay.DelayedForKey: "soon"},
		{wmdelay.DelayedForKey: "5"},
		{wmdelay.DelayedUntilKey: "tomorrow"},
		{wmdelay.DelayedUntilKey: "2026-03-04 05:06:07"},
		{wmdelay.DelayedUntilKey: "2026-03-04T05:06:07Z", wmdelay.DelayedForKey: "1 s"},
		{wmdelay.DelayedUntilKey: "x", wmdelay.DelayedForKey: "1s"},
	} {
		_, delayed, err := delay.Due(metadata, time.Now())
		var malformed *delay.MetadataError
		require.ErrorAs(t, err, &malformed, "%v", metadata)
		assert.Equal(t, metadata[malformed.Key], malformed.Value)
		assert.Error(t, malformed.Unwrap())
		assert.False(t, delayed)
	}
}

// What Watermill writes is due when it was meant to be, to the nanosecond if it is published at
// once, and within its second whenever it is published.
func TestDue_Watermill(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		duration := time.Duration(rapid.Int64Range(-int64(time.Hour), int64(4*365*24*time.Hour)).Draw(t, "for"))
		later := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "later"))
		before := time.Now()
		msg := message.NewMessage("", nil)
		wmdelay.Message(msg, wmdelay.For(duration))
		after := time.Now()

		due, delayed, err := delay.Due(msg.Metadata, after)
		require.NoError(t, err)
		require.True(t, delayed)
		require.False(t, due.Before(before.Add(duration)), "never early")
		require.False(t, due.After(after.Add(duration)), "never later than the call took")

		again, _, err := delay.Due(msg.Metadata, after.Add(later))
		require.NoError(t, err)
		require.Less(t, again.Sub(due).Abs(), time.Second, "published late or again, it is due at the same time")
	})
}
