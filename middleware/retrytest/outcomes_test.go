package retrytest_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

var (
	errListed = errors.New("an error that the policies retry")
	errNever  = errors.New("an error of NeverRetry")
)

// opinionError says of itself that no retry helps.
type opinionError struct{ error }

func (opinionError) Retryable() bool { return false }

const (
	asked         = 20 * time.Second // d
	unpublishable = "`nil`, but its outputs cannot be published"
	takenAway     = "anything, when a shutdown has taken the message away"
	leftOut       = "an error that `RetryOnly` leaves out"
)

// what the handler returns, by the words of the docs.
var returned = map[string]func() error{
	"`nil`":                                 func() error { return nil },
	"an error":                              func() error { return errListed },
	"a panic":                               func() error { panic("at the disco") },
	"an error of `NeverRetry`":              func() error { return fmt.Errorf("wrapped: %w", errNever) },
	leftOut:                                 func() error { return errors.New("another error") },
	"an error whose `Retryable()` is false": func() error { return opinionError{errListed} },
	"`Permanent(err)`":                      func() error { return retry.Permanent(errListed) },
	"`Transient(err)`, of `NeverRetry`":     func() error { return retry.Transient(errNever) },
	"`Drop(err)`":                           func() error { return retry.Drop(errListed) },
	"`RetryAfter(d, err)`":                  func() error { return retry.RetryAfter(asked, errListed) },
	"`Postpone(d)`":                         func() error { return retry.Postpone(asked) },
	unpublishable:                           func() error { return nil },
	takenAway:                               func() error { return errListed },
}

// stages are where the message is in its life, by the words of the docs, and the policy that brings
// it there.
var stages = map[string]config.Policy{
	"first try, an immediate one is left": {Delays: seconds(10, 15), Immediate: 1},
	"first attempt":                       {Delays: seconds(10, 15)},
	"last attempt":                        {Delays: seconds(10, 15)},
	"the wait would outlive the deadline": {Delays: seconds(10)},
	"policy without retries":              {Mode: config.ModeDeadLetter},
}

func seconds(n ...int) []time.Duration {
	delays := make([]time.Duration, len(n))
	for i := range n {
		delays[i] = time.Duration(n[i]) * time.Second
	}

	return delays
}

// tables reads the tables of the docs, row by row.
func tables(t *testing.T) (outcomes, unhandled [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/how-to/say-what-an-error-means.md")
	require.NoError(t, err)

	var all [][][]string
	for part := range strings.SplitSeq(string(text), "\n\n") {
		lines := strings.Split(strings.TrimSpace(part), "\n")
		if strings.HasPrefix(lines[0], "<!--") {
			lines = lines[1:]
		}
		if !strings.HasPrefix(lines[0], "|") {
			continue
		}
		var rows [][]string
		for _, line := range append(lines[:1], lines[2:]...) {
			var cells []string
			for cell := range strings.SplitSeq(strings.Trim(line, "| "), "|") {
				cells = append(cells, strings.TrimSpace(cell))
			}
			rows = append(rows, cells)
		}
		all = append(all, rows)
	}
	require.Len(t, all, 2, "tables of the docs")

	return all[0], all[1]
}

// The docs' table of outcomes, word for word, as on a broker.
func TestOutcomes(t *testing.T) {
	t.Parallel()

	rows, _ := tables(t)
	columns := rows[0]
	require.Len(t, columns, len(stages)+1)
	require.Len(t, rows, len(returned)+1)

	for _, row := range rows[1:] {
		require.Contains(t, returned, row[0], "each row of the docs is one of the test")
		for i, stage := range columns[1:] {
			require.Contains(t, stages, stage, "each column of the docs is one of the test")
			t.Run(row[0]+"/"+stage, func(t *testing.T) {
				t.Parallel()
				played, words := playCell(row[0], stage)
				assert.Equal(t, row[i+1], words, "%s", played)
			})
		}
	}
}

// playCell plays a cell of the table: the handler comes to the stage, returns what the row says,
// once, and then succeeds.
func playCell(row, stage string) (retrytest.Result, string) {
	type moment struct {
		at      time.Time
		attempt retry.Attempt
	}
	var then, next *moment

	policy := stages[stage]
	policy.NeverRetry = []config.ErrorMatch{config.Is(errNever)}
	if row == leftOut {
		policy.RetryOnly = []config.ErrorMatch{config.Is(errListed)}
	}
	clock := &retrytest.Clock{}
	call, acts := 0, 1
	if stage == "last attempt" {
		acts = 3
	}

	expiration := time.Duration(0)
	if stage == "the wait would outlive the deadline" {
		expiration = 8 * time.Second
	}

	service := retrytest.Service{Policy: policy, Clock: clock, Expiration: expiration,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			call++
			switch {
			case call < acts:
				return nil, errListed
			case call > acts:
				next = &moment{clock.Now(), attempt}
				return nil, nil
			}
			then = &moment{clock.Now(), attempt}

			return message.Messages{message.NewMessage("output", nil)}, returned[row]()
		}}
	switch row {
	case unpublishable:
		service.Faults = map[int]retrytest.Fault{acts: retrytest.Unpublishable}
	case takenAway:
		service.Faults = map[int]retrytest.Fault{acts: retrytest.Shutdown}
	}
	r := retrytest.Run(service, message.NewMessage("1", nil))

	switch {
	case then == nil:
		return r, "not there"
	case r.End == retrytest.DeadLettered && next == nil:
		return r, "dead-letter queue: `" + string(r.DeadLetter.Reason) + "`"
	case r.End == retrytest.Dropped && next == nil:
		return r, "dropped"
	case r.End == retrytest.Succeeded && next == nil:
		return r, "acknowledged"
	case r.End != retrytest.Succeeded || next == nil:
		return r, "no end"
	}

	waited := next.at.Sub(then.at)
	tries, attempts := next.attempt.Try-then.attempt.Try, next.attempt.Number-then.attempt.Number
	switch {
	case attempts == 0 && tries == 1 && waited == 0:
		return r, "called again at once"
	case attempts == 1 && waited >= asked:
		return r, "retried after d or more"
	case attempts == 1 && waited == policy.Delay(then.attempt.Number):
		return r, "retried after the policy's delay"
	case attempts == 0 && tries == 0 && waited >= asked:
		return r, "back after d or more, no attempt used up"
	case attempts == 0 && tries == 0 && waited == 0 && next.attempt.Calls == then.attempt.Calls:
		return r, "back in its queue, not counted"
	}

	return r, fmt.Sprintf("called after %s, %d attempts and %d tries later", waited, attempts, tries)
}

// The rows of what is found before a handler is called, by the words of the docs.
func TestOutcomesWithoutAHandler(t *testing.T) {
	t.Parallel()

	play := func(s retrytest.Service) retrytest.Result {
		if s.ConsumerHandler == nil {
			s.ConsumerHandler = returns(errListed)
		}

		return play(s)
	}
	rejects := func(*message.Message) error { return errors.New("no such schema") }
	dies := map[int]retrytest.Fault{retrytest.EveryCall: retrytest.Crash}

	found := map[string]func(t *testing.T) string{
		"the deadline has passed": func(*testing.T) string {
			s := retrytest.Service{Policy: config.Policy{MaxAge: time.Minute}, Clock: &retrytest.Clock{}}
			s.Timestamp = s.Clock.Now().Add(-time.Hour)
			dead := play(s)
			s.Policy.OnExpiry = config.ExpiryDrop

			return fmt.Sprintf("dead-letter queue: `%s`, or %s with `OnExpiry: drop`", dead.DeadLetter.Reason,
				play(s).End)
		},
		"it is not due yet (`RetryAfter`, `Postpone` for longer than any delay)": func(t *testing.T) string {
			r := play(retrytest.Service{Policy: config.Policy{Delays: seconds(1)},
				ConsumerHandler: func(msg *message.Message) error {
					if attempt, _ := retry.AttemptFromContext(msg.Context()); attempt.Number > 1 {
						return nil
					}

					return retry.RetryAfter(3*time.Second, errListed)
				}})
			r.AssertDelays(t, 3*time.Second)
			assert.Len(t, r.Steps, 4, "two calls, and twice not due")
			r.AssertSucceeded(t, 2)

			return "it goes on waiting"
		},
		"it cannot be decoded": func(t *testing.T) string {
			dead := play(retrytest.Service{Unmarshal: rejects})
			dead.AssertCalls(t, 0)
			play(retrytest.Service{
				Unmarshal: rejects, Decide: func(f retry.Failure) error { return retry.Drop(f.Err) },
			}).AssertDropped(t)

			return fmt.Sprintf("dead-letter queue: `%s`; `Options.Decide` can say otherwise", dead.DeadLetter.Reason)
		},
		"its consumers died `CrashLimit` times": func(t *testing.T) string {
			r := play(retrytest.Service{Policy: config.Policy{Delays: seconds(1), CrashLimit: 3}, Faults: dies})
			r.AssertDelays(t, time.Second)
			r.AssertCalls(t, 6)

			return fmt.Sprintf("a failed attempt: retried, in the end dead-letter queue: `%s`", r.DeadLetter.Reason)
		},
		"a `Postpone` would end beyond `MaxPostpone`": func(*testing.T) string {
			r := play(retrytest.Service{Policy: config.Policy{MaxPostpone: time.Minute},
				ConsumerHandler: func(*message.Message) error {
					return retry.Postpone(5 * time.Second)
				}})

			return fmt.Sprintf("dead-letter queue: `%s`", r.DeadLetter.Reason)
		},
	}

	_, rows := tables(t)
	for _, row := range rows[1:] {
		if strings.HasPrefix(row[0], "the broker's delivery limit") {
			continue // nothing here plays the broker
		}
		require.Contains(t, found, row[0], "each row of the docs is one of the test")
		t.Run(row[0], func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, row[1], found[row[0]](t))
		})
	}
	assert.Len(t, rows, len(found)+2)
}
