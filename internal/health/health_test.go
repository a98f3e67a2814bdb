package health

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/retry"
)

// A process is ready while one of its subscriptions consumes, and shortly after.
func TestJudge(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	well := Subscription{Topic: "t", Queue: "well"}
	lost := Subscription{Topic: "t", Queue: "lost", Stopped: ago(Grace), Err: errors.New("no route to the broker")}
	lately := Subscription{Queue: "lately", Stopped: ago(Grace - 1)}
	leaderless := Subscription{Queue: "leaderless", Unknown: ago(time.Minute)}
	refused := Subscription{Queue: "refused", Stopped: ago(0), Refused: true, Err: errors.New("order of middlewares")}
	withdrawn := Subscription{Queue: "withdrawn", Running: 3, Since: ago(time.Minute)}
	blocked := retry.Problem{Kind: retry.ProblemAlarm, Connection: "forwarder"}
	closed := retry.Problem{Kind: retry.ProblemRunning, NotReady: true}

	type found struct {
		kind     retry.ProblemKind
		queue    string
		notReady bool
	}
	consumer := func(queue string, notReady bool) found { return found{retry.ProblemConsumer, queue, notReady} }
	for name, test := range map[string]struct {
		subscriptions []Subscription
		problems      []retry.Problem
		want          []found
	}{
		"nothing":      {},
		"well":         {[]Subscription{well}, nil, nil},
		"one of two":   {[]Subscription{well, lost}, nil, []found{consumer("lost", false)}},
		"the only one": {[]Subscription{lost}, nil, []found{consumer("lost", true)}},
		"within the grace": {[]Subscription{lately, lost}, nil, []found{
			consumer("lately", false), consumer("lost", false),
		}},
		"no leader": {[]Subscription{well, leaderless}, nil, []found{
			{retry.ProblemLeader, "leaderless", false},
		}},
		"no leader for any": {[]Subscription{leaderless}, nil, []found{{retry.ProblemLeader, "leaderless", true}}},
		"refused":           {[]Subscription{well, refused}, nil, []found{consumer("refused", true)}},
		"handlers run on":   {[]Subscription{withdrawn}, nil, []found{{retry.ProblemHandlers, "withdrawn", false}}},
		"alarm":             {[]Subscription{well}, []retry.Problem{blocked}, []found{{retry.ProblemAlarm, "", false}}},
		"closed": {[]Subscription{well, lost}, []retry.Problem{blocked, closed}, []found{
			{retry.ProblemRunning, "", true}, {retry.ProblemAlarm, "", false}, consumer("lost", false),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := Judge(now, test.subscriptions, test.problems)
			var got []found
			ready := true
			for _, p := range h.Problems {
				got = append(got, found{p.Kind, p.Queue, p.NotReady})
				ready = ready && !p.NotReady
			}
			assert.Equal(t, test.want, got)
			assert.Equal(t, ready, h.Ready)
		})
	}

	text := Judge(now, []Subscription{lost}, nil).Problems[0]
	assert.Equal(t, `queue "lost" has no consumer: no route to the broker; the service tries again by itself`,
		text.Text)
	assert.Equal(t, lost.Err, text.Err)
	assert.Equal(t, "t", text.Topic)
	assert.Equal(t, lost.Stopped, text.Since)
}
