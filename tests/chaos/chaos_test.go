package chaos

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/retry"
)

// system is all of a run.
type system struct {
	t          *testing.T
	broker     *broker
	topics     []Topic // to which messages are sent
	workers    []*worker
	readers    []*Reader
	clockSteps bool

	mu      sync.Mutex
	faults  []Fault
	records []Record
	letters []Letter
	ended   map[string]bool
	errs    []error
}

// Nothing is lost, whatever fails, for as many messages as are wanted.
func TestChaos_OwnBroker(t *testing.T) {
	seed := env.Int[int64](t, "SEED", time.Now().UnixNano()%1_000_000)
	messages := env.Int[int64](t, "MESSAGES", 3000)
	limit, err := time.ParseDuration(cmp.Or(os.Getenv("FOR"), "1m"))
	require.NoError(t, err, "FOR")
	longest := min(20*time.Second, limit/9) // so that the last of them do not make the run much longer
	t.Logf("SEED=%d MESSAGES=%d FOR=%s TOPICS=%q FAULTS=%q CONFIRM_TIMEOUT=%s", seed, messages, limit,
		os.Getenv("TOPICS"), os.Getenv("FAULTS"), os.Getenv("CONFIRM_TIMEOUT"))
	random := func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(uint64(seed), stream)) }

	s := &system{t: t, clockSteps: os.Getenv("CLOCK_STEPS") != "", ended: map[string]bool{}}
	binaries := buildWorkers(t, s.clockSteps)
	s.broker = startBroker(t)
	s.topics = chosen(t, TopicsOn(s.broker.version), "TOPICS", func(topic Topic) string { return topic.Name })
	folder := t.TempDir()
	for i, version := range []Version{VersionA, VersionB, VersionA} {
		both := []string{binaries[i%2], binaries[1-i%2]} // so that the same queues are served by both
		w := startWorker(t, fmt.Sprintf("worker-%d", i+1), both, folder, s.broker, version, longest)
		s.workers = append(s.workers, w)
		s.readers = append(s.readers, &Reader{Path: filepath.Join(folder, w.name)})
	}
	await.Within(t, time.Minute, func() bool {
		started := 0
		for _, r := range s.read() {
			if r.Kind == Started {
				started++
			}
		}
		return started == len(s.workers)
	}, "the workers")
	require.NoError(t, s.broker.written())

	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	p := &publisher{broker: s.broker, wanted: int(messages), lasting: limit * 9 / 10, ahead: 3000, random: random(1),
		topics: s.topics, ended: s.count}
	some := func(kinds []kind) []kind {
		return chosen(t, kinds, "FAULTS", func(k kind) string { return k.name })
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.run(ctx); cancel() })
	wg.Go(func() { s.trouble(ctx, random(2), "process", some(s.processFaults()), 3*time.Second) })
	wg.Go(func() { s.trouble(ctx, random(3), "connection", some(s.networkFaults()), 2*time.Second) })
	wg.Go(func() { s.trouble(ctx, random(4), "broker", some(s.brokerFaults()), 4*time.Second) })
	wg.Wait()
	trouble := time.Since(began)
	t.Logf("the trouble is over after %s: %d messages, %d faults", trouble.Round(time.Second), p.count(), len(s.faults))

	settled := time.Now()
	s.settle()
	t.Logf("everything has ended after another %s", time.Since(settled).Round(time.Second))
	for _, topic := range TopicsOn(s.broker.version) {
		require.NoError(t, s.collect(topic.Name))
	}
	left, err := s.broker.depths()
	require.NoError(t, err)
	for _, topic := range Topics() { // RabbitMQ can lose the last acknowledgements of who reads them, when he closes
		delete(left, deadLetterQueue(topic.Name))
	}
	for _, w := range s.workers {
		for _, wrong := range w.stop() {
			t.Error(wrong)
		}
	}
	for _, err := range s.errs {
		t.Errorf("a fault could not be made: %v", err)
	}

	ledger := Ledger{Sent: p.sent, Records: s.read(), Letters: s.letters, Faults: s.faults, Left: left,
		Longest: longest}
	verdict := ledger.Judge()
	report.Write(t, Report(fmt.Sprintf("RabbitMQ %s, seed %d, %d processes, %s of faults", s.broker.version, seed,
		len(s.workers), trouble.Round(time.Second)), ledger, verdict))
	for i, wrong := range verdict.Wrong {
		if i == 10 {
			t.Errorf("and %d more", len(verdict.Wrong)-i)
			break
		}
		t.Error(wrong)
	}
	assert.NotEmpty(t, ledger.Faults)
}

// chosen are those whose name matches the regular expression in an environment variable; all of
// them without one.
func chosen[T any](t *testing.T, all []T, variable string, name func(T) string) []T {
	t.Helper()
	pattern, err := regexp.Compile(os.Getenv(variable))
	require.NoError(t, err, variable)

	return slices.DeleteFunc(slices.Clone(all), func(one T) bool { return !pattern.MatchString(name(one)) })
}

// read gives all records so far, in order.
func (s *system) read() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.readers {
		added, err := r.Read()
		if err != nil {
			s.errs = append(s.errs, err)
			continue
		}
		s.records = append(s.records, added...)
		for _, a := range added {
			switch a.Kind {
			case Returned, Kind(retry.EventDeadLettered), Kind(retry.EventDropped):
				s.ended[a.ID] = true
			default:
			}
		}
	}
	slices.SortStableFunc(s.records, func(a, b Record) int { return a.At.Compare(b.At) })

	return s.records
}

// count is how many messages have ended.
func (s *system) count() int {
	s.read()
	s.mu.Lock()
	defer s.mu.Unlock()

	return len(s.ended)
}

// trouble makes faults, one after the other, until the context ends.
func (s *system) trouble(ctx context.Context, r *rand.Rand, of string, kinds []kind, pause time.Duration) {
	for len(kinds) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(r.Int64N(int64(pause)))):
		}
		k := drawn(r, kinds)
		start := Now()
		deleted, err := k.make(r)
		if took := Now().Sub(start); took > time.Minute {
			s.t.Logf("%s took %s", k.name, took)
		}
		s.mu.Lock()
		s.faults = append(s.faults, Fault{Name: k.name, Of: of, Start: start, End: Now(), Deleted: deleted,
			Harmless: k.harmless})
		if err != nil {
			s.errs = append(s.errs, fmt.Errorf("%s: %w", k.name, err))
		}
		s.mu.Unlock()
	}
}

// collect takes the dead letters of a topic.
func (s *system) collect(topic string) error {
	letters, err := s.broker.drain(topic)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range letters {
		// What was not acknowledged the last time comes again: the id of its publish tells.
		if !slices.ContainsFunc(s.letters, func(known Letter) bool {
			return text(known.Message, idKey) == text(l.Message, idKey)
		}) {
			s.letters = append(s.letters, l)
		}
	}

	return err
}

// settle waits until nothing is on its way any more. A broker that could not hand back what was due
// tries again after its confirm timeout, and a message with an exact delay waits in several queues.
func (s *system) settle() {
	quiet, last := time.Now(), -1
	within := 8*time.Minute + 4*s.broker.confirmTimeout
	for end := time.Now().Add(within); time.Now().Before(end); {
		<-time.After(2 * time.Second)
		depths, err := s.broker.depths()
		if err != nil {
			s.t.Log(err)
			quiet = time.Now()
			continue
		}
		waiting := 0
		for queue, n := range depths {
			if !isDeadLetterQueue(queue) {
				waiting += n
			}
		}
		if n := len(s.read()); waiting > 0 || n != last {
			quiet, last = time.Now(), n
		}
		if time.Since(quiet) > 6*time.Second {
			return
		}
	}
	depths, err := s.broker.depths()
	s.t.Errorf("messages are still on their way after %s: %v %v", within, depths, err)
}

func isDeadLetterQueue(queue string) bool {
	return slices.ContainsFunc(Topics(), func(t Topic) bool { return deadLetterQueue(t.Name) == queue })
}
