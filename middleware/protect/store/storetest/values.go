package storetest

import (
	"bytes"
	"context"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// Values tests values.
func Values(t *testing.T, open func(t *testing.T) store.Values) {
	for name, test := range map[string]func(*testing.T, processes){
		"set and changed":    testChanged,
		"names":              testNames,
		"any bytes":          testBytes,
		"left alone":         testLeftAlone,
		"error of change":    testErrorOfChange,
		"panic in change":    testPanicInChange,
		"Goexit in change":   testGoexitInChange,
		"ended contexts":     testValuesEndedContexts,
		"keep":               testKeep,
		"counts":             testCounts,
		"first of many":      testFirstOfMany,
		"one after another":  testNoLostUpdate,
		"clock":              testClock,
		"too short a keep":   testShortKeep,
		"others do not wait": testOthersDoNotWait,
	} {
		t.Run(name, func(t *testing.T) { test(t, processes{open(t), open(t)}) })
	}
}

// processes share values.
type processes [2]store.Values

func set(t require.TestingT, values store.Values, name string, value []byte) {
	require.NoError(t, values.Update(context.Background(), name, long, func(time.Time, []byte) ([]byte, error) {
		return value, nil
	}))
}

// get reads a value, which leaves it alone.
func get(t require.TestingT, values store.Values, name string) (value []byte) {
	require.NoError(t, values.Update(context.Background(), name, long, func(_ time.Time, old []byte) ([]byte, error) {
		value = bytes.Clone(old)

		return nil, nil
	}))

	return value
}

// add counts a value up.
func add(ctx context.Context, values store.Values, name string, keep time.Duration) error {
	return values.Update(ctx, name, keep, func(_ time.Time, old []byte) ([]byte, error) {
		runtime.Gosched() // somebody else may come between
		n := 0
		if old != nil {
			var err error
			if n, err = strconv.Atoi(string(old)); err != nil {
				return nil, err
			}
		}

		return []byte(strconv.Itoa(n + 1)), nil
	})
}

func testChanged(t *testing.T, in processes) {
	name := name(t)
	assert.Nil(t, get(t, in[0], name))
	set(t, in[0], name, []byte("a"))
	assert.Equal(t, "a", string(get(t, in[1], name)))
	set(t, in[1], name, []byte("bb"))
	assert.Equal(t, "bb", string(get(t, in[0], name)))
	set(t, in[0], name, []byte("bb"))
	assert.Equal(t, "bb", string(get(t, in[1], name)), "the same value again")
	set(t, in[0], name, []byte("c"))
	assert.Equal(t, "c", string(get(t, in[1], name)))
}

func testNames(t *testing.T, in processes) {
	base := name(t)
	for _, key := range keys {
		set(t, in[0], base+key, []byte(strconv.Quote(key)))
	}
	for _, key := range keys {
		assert.Equal(t, strconv.Quote(key), string(get(t, in[1], base+key)), "%.40q", key)
	}
}

func testBytes(t *testing.T, in processes) {
	name := name(t)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, value := range [][]byte{all, {0}, {0xff}, []byte(strings.Repeat("v", 8_192)), []byte(`{"a": 1}`), []byte(" ")} {
		set(t, in[0], name, value)
		assert.Equal(t, value, get(t, in[1], name))
	}
}

func testLeftAlone(t *testing.T, in processes) {
	name := name(t)
	set(t, in[0], name, nil)
	assert.Nil(t, get(t, in[1], name))
	set(t, in[0], name, []byte("a"))
	set(t, in[1], name, nil)
	assert.Equal(t, "a", string(get(t, in[1], name)))
}

type changeError struct{}

func (*changeError) Error() string { return "no change" }

func testErrorOfChange(t *testing.T, in processes) {
	name := name(t)
	for _, before := range []string{"", "a"} {
		if before != "" {
			set(t, in[0], name, []byte(before))
		}
		err := in[0].Update(t.Context(), name, long, func(time.Time, []byte) ([]byte, error) {
			return []byte("b"), &changeError{}
		})
		var e *changeError
		require.ErrorAs(t, err, &e)
		assert.Equal(t, &changeError{}, err, "as it is")
		assert.Equal(t, before, string(get(t, in[1], name)))
	}
}

// Whatever a change does, the next one goes on.
func testPanicInChange(t *testing.T, in processes) {
	name := name(t)
	set(t, in[0], name, []byte("a"))
	for range 20 { // more than a pool has connections
		assert.PanicsWithValue(t, "boom", func() {
			_ = in[0].Update(t.Context(), name, long, func(time.Time, []byte) ([]byte, error) { panic("boom") })
		})
	}
	assertGoesOn(t, in, name)
}

func testGoexitInChange(t *testing.T, in processes) {
	name := name(t)
	set(t, in[0], name, []byte("a"))
	for range 20 {
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = in[0].Update(t.Context(), name, long, func(time.Time, []byte) ([]byte, error) {
				runtime.Goexit()

				return nil, nil
			})
		})
		wg.Wait()
	}
	assertGoesOn(t, in, name)
}

func assertGoesOn(t *testing.T, in processes, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for _, values := range in {
		require.NoError(t, values.Update(ctx, name, long, func(_ time.Time, old []byte) ([]byte, error) {
			assert.Equal(t, "a", string(old))

			return []byte("a"), nil
		}))
	}
}

func testValuesEndedContexts(t *testing.T, in processes) {
	name := name(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, add(ended, in[0], name, long), context.Canceled)
	assert.Nil(t, get(t, in[1], name))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := in[0].Update(ctx, name, long, func(time.Time, []byte) ([]byte, error) {
		cancel()

		return []byte("a"), nil
	})
	if err != nil {
		assert.ErrorIs(t, err, context.Canceled)
		// The answer can have been lost, but not the order: what is written from now on is the
		// last.
	}
	set(t, in[0], name, []byte("b"))
	assert.Equal(t, "b", string(get(t, in[1], name)))
}

// A value is kept as long as the latest change has said. Later it is there or not.
func testKeep(t *testing.T, in processes) {
	base := name(t)
	var longer, forgotten string
	inTime(t, func(key string) error {
		longer, forgotten = base+"-longer-"+key, base+"-forgotten-"+key
		for _, name := range []string{longer, forgotten} {
			require.NoError(t, add(t.Context(), in[0], name, short))
		}
		require.NoError(t, add(t.Context(), in[1], longer, long))
		return add(t.Context(), in[1], forgotten, long)
	})
	require.NoError(t, add(t.Context(), in[1], forgotten, short))

	<-time.After(2 * short)
	assert.Equal(t, "3", string(afterAdd(t, in[0], longer)))
	assert.Contains(t, []string{"1", "4"}, string(afterAdd(t, in[0], forgotten)), "nothing between")
}

func afterAdd(t *testing.T, values store.Values, name string) []byte {
	t.Helper()
	require.NoError(t, add(t.Context(), values, name, long))

	return get(t, values, name)
}

func testCounts(t *testing.T, in processes) {
	name := name(t)
	const goroutines, each = 16, 15
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for range each {
				assert.NoError(t, add(context.Background(), in[i%2], name, long))
			}
		})
	}
	wg.Wait()
	assert.Equal(t, strconv.Itoa(goroutines*each), string(get(t, in[0], name)))
}

// Of many who make a value, exactly one does not find any.
func testFirstOfMany(t *testing.T, in processes) {
	const goroutines, rounds = 16, 5
	for range rounds {
		name := name(t)
		var start, wg sync.WaitGroup
		start.Add(1)
		firsts := make([]bool, goroutines)
		for i := range goroutines {
			wg.Go(func() {
				start.Wait()
				assert.NoError(t, in[i%2].Update(context.Background(), name, long,
					func(_ time.Time, old []byte) ([]byte, error) {
						firsts[i] = old == nil

						return []byte{byte(i)}, nil
					}))
			})
		}
		start.Done()
		wg.Wait()
		n := 0
		for _, first := range firsts {
			if first {
				n++
			}
		}
		assert.Equal(t, 1, n)
	}
}

// A change that somebody else comes between is made again, of the value that he has left. In a
// store that locks values nobody comes between.
func testNoLostUpdate(t *testing.T, in processes) {
	name := name(t)
	inside, ended, between := make(chan struct{}), make(chan error, 1), make(chan struct{})
	var once sync.Once
	go func() {
		ended <- in[0].Update(context.Background(), name, long, func(_ time.Time, old []byte) ([]byte, error) {
			once.Do(func() {
				close(inside)
				select {
				case <-between:
				case <-time.After(short):
				}
			})

			return append(bytes.Clone(old), 'a'), nil
		})
	}()
	<-inside
	require.NoError(t, in[1].Update(t.Context(), name, long, func(_ time.Time, old []byte) ([]byte, error) {
		return append(bytes.Clone(old), 'b'), nil
	}))
	close(between)
	require.NoError(t, <-ended)
	assert.Contains(t, []string{"ab", "ba"}, string(get(t, in[0], name)))
}

// All processes see one clock, which goes on and does not go back.
func testClock(t *testing.T, in processes) {
	name := name(t)
	began := time.Now()
	var first, last time.Time
	for i := 0; last.Sub(first) < short; i++ {
		require.Less(t, time.Since(began), soon)
		require.NoError(t, in[i%2].Update(t.Context(), name, long, func(now time.Time, _ []byte) ([]byte, error) {
			require.False(t, now.Before(last), "%s after %s", now, last)
			if last = now; i == 0 {
				first = now
			}

			return []byte(strconv.Itoa(i)), nil
		}))
	}
	assert.LessOrEqual(t, last.Sub(first), time.Since(began)+short/2, "no faster than others")
}

func testShortKeep(t *testing.T, in processes) {
	name := name(t)
	for _, keep := range []time.Duration{0, -time.Second, time.Microsecond} {
		require.Error(t, add(t.Context(), in[0], name, keep), "%s", keep)
	}
	assert.Nil(t, get(t, in[1], name))
	require.NoError(t, add(t.Context(), in[0], name, store.MinLease))
}

// A slow change of one value does not hold up others.
func testOthersDoNotWait(t *testing.T, in processes) {
	slow, other := name(t), name(t)
	inside, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		ended <- in[0].Update(context.Background(), slow, long, func(time.Time, []byte) ([]byte, error) {
			once.Do(func() { close(inside) })
			<-end

			return []byte("a"), nil
		})
	}()
	<-inside
	for _, values := range in {
		set(t, values, other, []byte("b"))
		assert.Equal(t, "b", string(get(t, values, other)))
	}
	close(end)
	require.NoError(t, <-ended)
	assert.Equal(t, "a", string(get(t, in[1], slow)))
}
