package consumer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
)

func TestSuspectsFrom(t *testing.T) {
	for name, test := range map[string]struct {
		mode    config.Mode
		limit   int
		version string
		want    int64
	}{
		"4.3":                        {config.ModeRetry, 10, "4.3.6", 2},
		"4.0":                        {config.ModeRetry, 7, "4.0.5", 2},
		"a low limit":                {config.ModeRetry, 6, "4.3.6", 1},
		"3.10":                       {config.ModeRetry, 10, "3.10.8", 1},
		"two digits":                 {config.ModeRetry, 10, "10.0", 2},
		"unknown":                    {config.ModeRetry, 10, "", 1},
		"dead letters only":          {config.ModeDeadLetter, 10, "4.0.5", 2},
		"off: nothing is judged yet": {config.ModeOff, 10, "4.0.5", never},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, suspectsFrom(&config.Policy{Mode: test.mode, CrashLimit: test.limit},
				test.version))
		})
	}
}

func TestIsSuspect(t *testing.T) {
	i := &intake{suspectsFrom: 2, session: &session{queue: &Queue{Name: "q"}}}
	of := func(count int64, redelivered bool) *received {
		return &received{Delivery: amqp091.Delivery{Redelivered: redelivered,
			Headers: amqp091.Table{"x-delivery-count": count}}}
	}
	assert.True(t, i.isSuspect(of(2, true)))
	assert.False(t, i.isSuspect(of(1, true)))
	assert.False(t, i.isSuspect(of(9, false)), "a publisher's count")
	assert.False(t, i.isSuspect(&received{Delivery: amqp091.Delivery{Redelivered: true}}), "a classic queue does not "+
		"count")
	crashed := func(history string) *received {
		return &received{Delivery: amqp091.Delivery{Headers: amqp091.Table{"amqpretry-queue": "q",
			"amqpretry-history": history}}}
	}
	assert.True(t, i.isSuspect(crashed(`[{"n":10,"at":"x","error":"died","reason":"crashed"}]`)),
		"in an earlier attempt")
	assert.False(t, i.isSuspect(crashed(`[{"n":1,"at":"x","error":"{\"reason\":\"crashed\"}"}]`)), "an error text")
	i.queue.Name = "other"
	assert.False(t, i.isSuspect(crashed(`[{"reason":"crashed"}]`)), "another queue's history")
	i.suspectsFrom = never
	assert.False(t, i.isSuspect(of(2, true)))
}

// queued waits for turns with these counts, one after the other, and gives the order in which they
// are granted.
func queued(t *testing.T, turns *Turns, limit int, counts ...int64) []int64 {
	t.Helper()
	give, ok := turns.take(0, limit, false, nil)
	require.True(t, ok)
	granted := make(chan int64, len(counts))
	for _, count := range counts {
		go func() {
			give, ok := turns.take(count, limit, count > 10, nil)
			assert.True(t, ok)
			granted <- count
			<-time.After(time.Second)
			give()
		}()
		synctest.Wait()
	}
	<-time.After(time.Second) // whatever grace there is, is over
	give()
	var order []int64
	for range counts {
		order = append(order, <-granted)
	}

	return order
}

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &Turns{}
		assert.Equal(t, []int64{1, 2, 5}, queued(t, turns, 10, 5, 1, 2), "the least suspected comes first")
		<-time.After(time.Minute)
		assert.Equal(t, []int64{9, 7, 2, 6}, queued(t, turns, 10, 6, 2, 7, 9), "but for those that the next death "+
			"could be one too many for")
		<-time.After(time.Minute)

		assert.Equal(t, []int64{9, 2, 12, 11}, queued(t, turns, 10, 11, 2, 12, 9), "one that has crashed before "+
			"(above 10 here) comes last")
		<-time.After(time.Minute)

		firsts := map[bool]int{}
		for range 100 {
			give, _ := turns.take(0, 10, false, nil)
			a, b := turns.queue(4, 10, false), turns.queue(4, 10, false)
			give()
			select {
			case <-a.granted:
				firsts[true]++
				turns.end(b)
				turns.end(a)
			case <-b.granted:
				firsts[false]++
				turns.end(a)
				turns.end(b)
			}
		}
		assert.Greater(t, firsts[true], 10, "of equals, now this one comes first")
		assert.Greater(t, firsts[false], 10, "and now the other")
	})
}

// Whoever may be a killer lets others go first which may come in a moment, if there are others.
func TestTurnsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &Turns{}
		leave := turns.join()
		took := func(count int64) time.Duration {
			began := time.Now()
			give, ok := turns.take(count, 10, false, nil)
			require.True(t, ok)
			give()

			return time.Since(began)
		}
		assert.Zero(t, took(6), "nobody else is there")
		defer turns.join()()
		assert.Equal(t, turnGrace, took(6))
		assert.Zero(t, took(manyRedeliveries-1))
		leave()
		assert.Zero(t, took(6))
	})
}

func TestTurnsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &Turns{}
		give, _ := turns.take(2, 10, false, nil)
		stop := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(stop) })
		_, ok := turns.take(2, 10, false, stop)
		assert.False(t, ok, "the consumer closes")

		began := time.Now()
		another, ok := turns.take(2, 10, false, nil)
		assert.True(t, ok)
		assert.Equal(t, turnPatience, time.Since(began), "nobody waits for ever")
		another() // which gives no turn back that it did not have
		waiting := turns.queue(2, 10, false)
		select {
		case <-waiting.granted:
			t.Error("two have a turn")
		default:
		}
		give()
		<-waiting.granted
	})
}

// A suspect whose handler does not return takes no turns away from other topics: nothing is alone
// any more beside it.
func TestStuckHandlersTakeOneTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &Turns{}
		sub := &subscription{consumer: &Consumer{settings: Settings{Turns: turns}}, logger: watermill.NopLogger{}}
		i := &intake{session: &session{sub: sub, queue: &sub.queue, acker: newAcker(brokenChannel{}, together{}),
			stop: make(chan struct{})}, out: make(chan received, 3)}
		defer i.acker.close()

		other := make(chan time.Duration, 1)
		began := time.Now()
		for n := range 3 { // nobody takes them
			i.hand = &received{}
			assert.Equal(t, eventUnsettled, i.handOutAlone())
			if n == 0 {
				go func() {
					give, ok := turns.take(1, 10, false, nil)
					assert.True(t, ok)
					defer give()
					other <- time.Since(began)
				}()
			}
		}
		assert.Equal(t, aloneLimit, <-other)
	})
}

// Where each failure is a return, what has failed is a suspect for a consumer that has just started
// only.
func TestIsSuspectNow(t *testing.T) {
	returned := &received{Delivery: amqp091.Delivery{Redelivered: true, Headers: amqp091.Table{
		"x-delivery-count": int64(3)}}}
	crashed := &received{Delivery: amqp091.Delivery{Headers: amqp091.Table{"amqpretry-queue": "q",
		"amqpretry-history": `[{"reason":"crashed"}]`}}}
	for strategy, open := range map[config.Strategy]bool{config.StrategyQueues: true, config.StrategyCycle: true,
		config.StrategyRedelivery: false, config.StrategyNative: false} {
		i := &intake{suspectsFrom: 2, session: &session{queue: &Queue{Name: "q",
			Policy: config.Policy{Strategy: strategy}}}}
		assert.True(t, i.isSuspectNow(returned, false), strategy)
		assert.Equal(t, open, i.isSuspectNow(returned, true), strategy)
		assert.True(t, i.isSuspectNow(crashed, true), strategy)
	}
}

// RabbitMQ 4.0 to 4.2 count the rejections of a cycle as deliveries without an answer.
func TestDeaths(t *testing.T) {
	queue := &Queue{Name: "q", Policy: config.Policy{Strategy: config.StrategyCycle, Retries: 3,
		Delays: []time.Duration{time.Second}}}
	rejected := func(rejections int64) *amqp091.Delivery {
		return &amqp091.Delivery{Headers: amqp091.Table{"x-delivery-count": int64(5), "x-first-death-queue": "q",
			"x-first-death-reason": "rejected", "x-death": []any{
				amqp091.Table{"queue": "q.retry.1s", "reason": "expired", "count": rejections},
				amqp091.Table{"queue": "q", "reason": "rejected", "count": rejections}}}}
	}
	for version, want := range map[string]int64{"3.10.8": 5, "3.13.7": 5, "4.0.5": 3, "4.2.1": 3, "4.3.6": 5, "": 5} {
		assert.Equal(t, want, queue.deaths(rejected(2), version), version)
	}
	assert.EqualValues(t, 1, queue.deaths(rejected(100), "4.0.5"), "more than the policy allows are none of ours")
	queue.Policy.Strategy = config.StrategyQueues
	assert.EqualValues(t, 5, queue.deaths(rejected(2), "4.0.5"))
}
