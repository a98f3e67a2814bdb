package tests

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
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
	asked         = time.Second // d
	afterDelay    = "retried after the policy's delay"
	unpublishable = "`nil`, but its outputs cannot be published"
	takenAway     = "anything, when a shutdown has taken the message away"
	leftOut       = "an error that `RetryOnly` leaves out"
	retryAfterD   = "`RetryAfter(d, err)`"
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
	retryAfterD:                             func() error { return retry.RetryAfter(asked, errListed) },
	"`Postpone(d)`":                         func() error { return retry.Postpone(asked) },
	unpublishable:                           func() error { return nil },
	takenAway:                               func() error { return errListed },
}

// where the message is in its life, by the words of the docs, and the policy that brings it there.
var stages = map[string]config.Policy{
	"first try, an immediate one is left": {Delays: ms(100, 1500), Immediate: 1},
	"first attempt":                       {Delays: ms(100, 1500)},
	"last attempt":                        {Delays: ms(100, 1500)},
	"the wait would outlive the deadline": {Delays: ms(60_000)},
	"policy without retries":              {Mode: config.ModeDeadLetter},
}

// documented reads the table of the docs: what is to happen, by row and column.
func documented(t *testing.T) map[string]map[string]string {
	t.Helper()
	text := must(os.ReadFile("../docs/reference/outcomes.md"))(t)
	_, table, found := strings.Cut(string(text), "<!-- outcomes -->\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")

	cells := func(line string) []string {
		parts := strings.Split(strings.Trim(line, "| "), "|")
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}

		return parts
	}
	lines := strings.Split(strings.TrimSpace(table), "\n")
	columns := cells(lines[0])[1:]
	require.ElementsMatch(t, columns, keys(stages), "each stage of the docs is one of the test")

	rows := map[string]map[string]string{}
	for _, line := range lines[2:] {
		parts := cells(line)
		require.Len(t, parts, len(columns)+1, line)
		rows[parts[0]] = map[string]string{}
		for i, column := range columns {
			rows[parts[0]][column] = parts[i+1]
		}
	}
	require.ElementsMatch(t, keys(rows), keys(returned), "each row of the docs is one of the test")

	return rows
}

func keys[V any](m map[string]V) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)

	return all
}

// The docs' table of outcomes, word for word, on a broker.
func TestOutcomes(t *testing.T) {
	t.Parallel()

	rows := documented(t)
	each(t, stages, func(t *testing.T, stage string, policy config.Policy) {
		want := map[string]string{}
		for row := range rows {
			want[row] = rows[row][stage]
		}
		newStageTest(t, stage, policy).run(want)
	})
}

// stageTest plays one column. A message's UUID is the row that it is for; it comes to the stage,
// its handler returns what the row says, once, and succeeds with any later call.
type stageTest struct {
	*service
	stage string
	only  string // topic with a policy that has RetryOnly

	mu      sync.Mutex
	acted   map[string]moment // what the row says was returned
	next    map[string]moment // the call after that
	blocked chan struct{}     // the message that a shutdown is to take away has reached its handler
}

type moment struct {
	at      time.Time
	attempt retry.Attempt
}

func newStageTest(t *testing.T, stage string, policy config.Policy) *stageTest {
	s := &stageTest{stage: stage, acted: map[string]moment{}, next: map[string]moment{},
		blocked: make(chan struct{}, 1)}
	queue := uniqueName("outcome")
	s.only = queue + "-only"

	policy.NeverRetry = []config.ErrorMatch{config.Is(errNever)}
	picky := policy
	picky.RetryOnly = []config.ErrorMatch{config.Is(errListed)}

	c := setup{Queue: queue}
	c.Options.Policies = config.Policies{Default: policy, Topics: map[string]config.Policy{s.only: picky}}
	c.Options.Concurrency, c.Prefetch = 20, 40
	c.Options.CloseTimeout = 300 * time.Millisecond
	c.Route = func(svc *service) {
		for _, topic := range []string{queue, s.only} {
			svc.Router.AddHandler(uniqueName("handler"), topic, svc.Sub, "nowhere", refusing{}, s.handle)
		}
	}
	s.service = start(t, c)
	t.Cleanup(func() {
		s.Broker.Remove(s.only+".retry", s.only, s.only+".retry.100ms", s.only+".retry.1500ms", s.only+".retry.1m",
			s.only+".dlq")
	})

	return s
}

// refusing is a publisher of outputs that cannot be published.
type refusing struct{}

func (refusing) Publish(string, ...*message.Message) error { return errors.New("refused") }
func (refusing) Close() error                              { return nil }

func (s *stageTest) handle(msg *message.Message) ([]*message.Message, error) {
	row := msg.UUID
	attempt, _ := retry.AttemptFromContext(msg.Context())
	if s.stage == "last attempt" && !attempt.Last {
		return nil, errListed
	}

	s.mu.Lock()
	_, again := s.acted[row]
	if again {
		if _, known := s.next[row]; !known {
			s.next[row] = moment{time.Now(), attempt}
		}
	} else {
		s.acted[row] = moment{time.Now(), attempt}
	}
	s.mu.Unlock()
	if again {
		return nil, nil
	}

	switch row {
	case unpublishable:
		return message.Messages{message.NewMessage("output", nil)}, nil
	case takenAway:
		s.blocked <- struct{}{}
		<-msg.Context().Done()
	}

	kind, _, _ := strings.Cut(row, "#")
	return nil, returned[kind]()
}

func (s *stageTest) run(want map[string]string) {
	for row := range want {
		messages := rabbit.Messages(row)
		if s.stage == "the wait would outlive the deadline" {
			messages[0].Expiration = "50000"
		}
		switch row {
		case takenAway: // below
		case leftOut:
			s.Broker.Publish(s.only, messages...)
		default:
			s.Broker.Publish(s.Queue, messages...)
		}
	}

	seen := func() map[string]string {
		dead := map[string]string{}
		for _, l := range s.Letters() {
			dead[l.Message.UUID] = string(l.Verdict.Reason)
		}
		words := map[string]string{}
		for row := range want {
			words[row] = s.words(row, dead[row])
		}
		words[takenAway] = want[takenAway]

		return words
	}
	var last map[string]string
	for deadline := time.Now().Add(await.Bound); ; <-time.After(tick) {
		late := time.Now().After(deadline)
		if last = seen(); late || equal(last, want) {
			break
		}
	}
	require.Equal(s.t, want, last)
	if want["an error"] == afterDelay {
		s.retriesBeforeD()
	}
	await.Stays(s.t, 1800*time.Millisecond, func() bool {
		last = seen()
		return equal(last, want)
	}, "that is the end of it: %v", last)

	s.publish(takenAway)
	await.Closed(s.t, s.blocked, "the last message reaches its handler")
	before := s.acted[takenAway].attempt
	s.close()

	back := s.Broker.Take(s.Queue, 1)[0]
	require.Equal(s.t, takenAway, rabbit.UUID(back))
	count := ""
	if before.Failures > 0 {
		count = fmt.Sprint(before.Failures)
	}
	require.Equal(s.t, count, rabbit.Text(back, header.Count), "not counted")
	require.Equal(s.t, "back in its queue, not counted", want[takenAway])
}

// retriesBeforeD shows that an error waits for the policy's delay and not for d, which is longer. A
// machine that stands still makes a wait longer and never shorter, so the shortest of five counts.
func (s *stageTest) retriesBeforeD() {
	s.t.Helper()
	var waited time.Duration
	for n := range 5 {
		id := fmt.Sprintf("an error#%d", n)
		s.publish(id)
		await.Until(s.t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			next, called := s.next[id]
			waited = next.at.Sub(s.acted[id].at)

			return called
		}, "another retry")
		if waited < asked {
			return
		}
	}
	s.t.Errorf("the last retry came after %s", waited)
}

func equal(a, b map[string]string) bool {
	for k := range b {
		if a[k] != b[k] {
			return false
		}
	}

	return len(a) == len(b)
}

// words says in those of the docs what has happened to a message.
func (s *stageTest) words(row, reason string) string {
	s.mu.Lock()
	then, acted := s.acted[row]
	next, called := s.next[row]
	s.mu.Unlock()

	waited := next.at.Sub(then.at)
	tries, attempts := next.attempt.Try-then.attempt.Try, next.attempt.Number-then.attempt.Number

	switch {
	case !acted:
		return "not yet there"
	case reason != "" && called:
		return "dead and alive"
	case reason != "":
		return "dead-letter queue: `" + reason + "`"
	case called && attempts == 0 && tries == 1:
		return "called again at once"
	case called && attempts == 1 && waited >= asked && row == retryAfterD:
		return "retried after d or more"
	case called && attempts == 1 && waited >= 100*time.Millisecond && row != retryAfterD:
		return afterDelay // or later: see retriesBeforeD
	case called && attempts == 0 && tries == 0 && waited >= asked:
		return "back after d or more, no attempt used up"
	case called:
		return fmt.Sprintf("called after %s, %d attempts and %d tries later", waited, attempts, tries)
	}
	for _, entry := range s.Logs.with("marked with retry.Drop") {
		if entry.Fields["message_uuid"] == row {
			return "dropped"
		}
	}

	return "acknowledged"
}
