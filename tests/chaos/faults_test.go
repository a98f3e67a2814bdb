package chaos

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// kind is one kind of fault.
type kind struct {
	name   string
	weight int
	// harmless: no delivery and no confirmation is lost by it.
	harmless bool
	// make makes the fault and ends it. It tells which queue it has deleted.
	make func(*rand.Rand) (deleted string, err error)
}

// nothing is for faults that delete nothing.
func nothing(make func(*rand.Rand) error) func(*rand.Rand) (string, error) {
	return func(r *rand.Rand) (string, error) { return "", make(r) }
}

// lasting waits between two times.
func lasting(r *rand.Rand, least, most time.Duration) {
	<-time.After(least + time.Duration(r.Int64N(int64(most-least))))
}

// processFaults happen to workers.
func (s *system) processFaults() []kind {
	some := func(f func(*worker, *rand.Rand)) func(*rand.Rand) (string, error) {
		return nothing(func(r *rand.Rand) error {
			f(s.workers[r.IntN(len(s.workers))], r)
			return nil
		})
	}
	kinds := []kind{
		{name: "process killed (SIGKILL)", weight: 3, make: some(func(w *worker, _ *rand.Rand) { w.kill() })},
		{name: "process closed gracefully", weight: 3, make: some(func(w *worker, _ *rand.Rand) { w.close() })},
		{name: "process changed to another policy", weight: 2,
			make: some(func(w *worker, _ *rand.Rand) { w.change() })},
	}
	if s.clockSteps {
		kinds = append(kinds, kind{name: "clock stepped", weight: 1, harmless: true,
			make: some(func(w *worker, r *rand.Rand) {
				w.stepClock(time.Duration(r.Int64N(int64(40*time.Minute))) - 20*time.Minute)
			})})
	}

	return kinds
}

// networkFaults happen between a worker and the broker.
func (s *system) networkFaults() []kind {
	some := func(f func(*network, *rand.Rand) error) func(*rand.Rand) (string, error) {
		return nothing(func(r *rand.Rand) error { return f(s.workers[r.IntN(len(s.workers))].network, r) })
	}

	return []kind{
		{name: "connections cut", weight: 4, make: some((*network).cut)},
		{name: "connections truncated in a frame", weight: 4, make: some((*network).truncate)},
		{name: "network stalled", weight: 2, make: some((*network).stall)},
		{name: "network swallowed, then cut", weight: 2, make: some((*network).swallow)},
		{name: "network slow", weight: 1, make: some((*network).slow)},
	}
}

// brokerFaults happen to the broker and its objects.
func (s *system) brokerFaults() []kind {
	b := s.broker
	ctl := func(args ...string) error {
		_, err := b.ctl(args...)
		return err
	}
	during := func(begin, end []string) func(*rand.Rand) (string, error) {
		return nothing(func(r *rand.Rand) error {
			if err := ctl(begin...); err != nil {
				return err
			}
			lasting(r, time.Second, 5*time.Second)
			return ctl(end...)
		})
	}
	restart := func(how string) func(*rand.Rand) (string, error) {
		return nothing(func(r *rand.Rand) error {
			if _, err := b.script(how); err != nil {
				return err
			}
			lasting(r, 0, 3*time.Second)
			_, err := b.script("start")
			return err
		})
	}

	return []kind{
		{name: "broker killed (SIGKILL)", weight: 4, make: restart("kill")},
		{name: "broker restarted", weight: 1, make: restart("stop")},
		{name: "broker frozen (SIGSTOP)", weight: 2, make: nothing(func(r *rand.Rand) error {
			if _, err := b.script("pause"); err != nil {
				return err
			}
			lasting(r, time.Second, 8*time.Second)
			_, err := b.script("resume")
			return err
		})},
		{name: "connections closed by the broker", weight: 3, make: nothing(func(*rand.Rand) error {
			return ctl("close_all_connections", "chaos")
		})},
		{name: "memory alarm", weight: 1, make: during(
			[]string{"set_vm_memory_high_watermark", "0.0000001"}, []string{"set_vm_memory_high_watermark", "absolute",
				"2GB"})},
		{name: "disk alarm", weight: 1, make: during([]string{"set_disk_free_limit", "90000GB"},
			[]string{"set_disk_free_limit", "50MB"})},
		// Not the classic retry queues: they first drop what is beyond the limit, and then begin to
		// refuse.
		{name: "copies refused (reject-publish)", weight: 2, harmless: true, make: during(
			[]string{"set_policy", "--apply-to", "queues", "refuse",
				`^((.+\.)?(retry\.[0-9]+m?s|dlq)|.+\.landing|amqpretry\.delay\..+\.[0-9]+m?s)$`,
				`{"max-length":1,"overflow":"reject-publish"}`},
			[]string{"clear_policy", "refuse"})},
		{name: "queue without leader", weight: 2, make: s.leaderless},
		{name: "retry exchange deleted", weight: 1, make: func(r *rand.Rand) (string, error) {
			exchange := anyOf(r, exchanges(s.topic(r)))
			return "", b.channel(func(ch *amqp091.Channel) error { return ch.ExchangeDelete(exchange, false, false) })
		}},
		{name: "retry queue deleted", weight: 1, make: func(r *rand.Rand) (string, error) {
			t := s.topic(r)
			if len(t.Exact) > 0 {
				return s.delete(ladder.WaitQueue(r.IntN(3), 1+r.IntN(9)))
			}
			return s.delete(retryQueue(t.Name, anyOf(r, VersionA.delaysOf(t))))
		}},
		{name: "dead-letter queue deleted", weight: 1, make: func(r *rand.Rand) (string, error) {
			t := s.topic(r)
			if err := s.collect(t.Name); err != nil { // what lies in it would be gone
				return "", err
			}
			return s.delete(deadLetterQueue(t.Name))
		}},
	}
}

func (s *system) topic(r *rand.Rand) Topic { return anyOf(r, s.topics) }

func anyOf[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

func (s *system) delete(queue string) (string, error) {
	return queue, s.broker.channel(func(ch *amqp091.Channel) error {
		_, err := ch.QueueDelete(queue, false, false, false)
		return err
	})
}

// leaderless takes the leader of a retry queue, a landing queue or a dead-letter queue away:
// publishes into it are never answered.
func (s *system) leaderless(r *rand.Rand) (string, error) {
	of := map[string][]string{
		"quorum":     {retryQueue("quorum", VersionA.Delays()[0])},
		"classic":    {retryQueue("classic", VersionA.Delays()[1])},
		"protected":  {deadLetterQueue("protected")},
		"shared":     {retryQueue("shared", VersionA.Delays()[2])},
		"exact":      {ladder.WaitQueue(r.IntN(3), 1+r.IntN(9)), landingQueue("exact")},
		"cycle":      {retryQueue("cycle", VersionA.delaysOf(find("cycle"))[0])},
		"redelivery": {deadLetterQueue("redelivery")},
		"native":     {deadLetterQueue("native")},
	}
	var queues []string
	for _, t := range s.topics {
		queues = append(queues, of[t.Name]...)
	}
	if len(queues) == 0 {
		queues = of["exact"] // which all of the others with exact delays use
	}
	queue := anyOf(r, queues)
	if err := s.broker.quorumServer("stop", queue); err != nil {
		return "", fmt.Errorf("queue %s: %w", queue, err)
	}
	lasting(r, time.Second, 6*time.Second)

	return "", s.broker.quorumServer("restart", queue)
}

// drawn is a kind at random, by weight.
func drawn(r *rand.Rand, kinds []kind) kind {
	all := 0
	for _, k := range kinds {
		all += k.weight
	}
	n := r.IntN(all)
	for _, k := range kinds {
		if n < k.weight {
			return k
		}
		n -= k.weight
	}
	panic("unreachable")
}
