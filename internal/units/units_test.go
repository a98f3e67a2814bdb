package units

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseAge(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "15m": 15 * time.Minute, "36h": 36 * time.Hour, "1h30m": 90 * time.Minute,
		"30d": 720 * time.Hour, "1d12h": 36 * time.Hour, "0.5d": 12 * time.Hour, "1d1ms": 24*time.Hour +
			time.Millisecond,
		"100000d": 2_400_000 * time.Hour,
	} {
		found, err := ParseAge(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, found, text)
	}
	for _, text := range []string{"", "0", "0d", "30", "-1h", "-1d", "1d-2h", "d", "1dd", "1h1d", "1 d", "999999999d",
		"1e3d", "1w", "0d0s", "∞"} {
		found, err := ParseAge(text)
		require.ErrorIs(t, err, ErrAge, "%q", text)
		assert.Zero(t, found, text)
	}
}

func TestParseRate(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]float64{"100/s": 100, "100": 100, "30/m": 0.5, "3600/h": 1, "0.5/s": 0.5} {
		found, err := ParseRate(text)
		require.NoError(t, err, text)
		assert.InDelta(t, want, found, 1e-9, text)
		again, err := ParseRate(Rate(found))
		require.NoError(t, err, text)
		assert.InDelta(t, want, again, 1e-9, text)
	}
	for _, text := range []string{"", "0", "0/s", "-1/s", "1/d", "NaN/s", "Inf/s", "1e300/s", "/s", "1/s/s", "x"} {
		_, err := ParseRate(text)
		assert.ErrorIs(t, err, ErrRate, "%q", text)
	}
	assert.Empty(t, Rate(0))
}

func TestNumbersAndTimesForPeople(t *testing.T) {
	t.Parallel()

	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 1500 * time.Millisecond: "1s", 59 * time.Second: "59s", 61 * time.Second: "1m01s",
		time.Hour + 61*time.Second: "1h01m", 25 * time.Hour: "1d01h", 800 * time.Hour: "33d08h",
	} {
		assert.Equal(t, want, Elapsed(d), d.String())
	}
	for n, want := range map[int]string{0: "0", 7: "7", 999: "999", 1000: "1,000", 1234567: "1,234,567",
		-1000: "-1,000", -100: "-100"} {
		assert.Equal(t, want, Thousands(n))
	}
	assert.Equal(t, "1 message", Many(1, "message"))
	assert.Equal(t, "1,234 messages", Many(1234, "message"))
}
