package simulate

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

// timeline is what is printed.
type timeline struct {
	Topic string      `json:"topic"`
	Queue string      `json:"queue"`
	Mode  config.Mode `json:"mode"`
	// Strategy by which failed messages are brought back.
	Strategy config.Strategy `json:"strategy"`
	Steps    []step          `json:"steps"`
	End      string          `json:"end"`
	// Reason of a dead letter, or of dropping.
	Reason string `json:"reason,omitempty"`
	// Calls of the handler.
	Calls         int    `json:"calls"`
	Total         millis `json:"total_ms"`
	ShortestTotal millis `json:"shortest_total_ms"`
	// Differs is that with the shortest waits more attempts have time before the message expires.
	differs bool
}

// By whom a message is brought to where it waits.
const (
	byBroker = "broker"
	byCopy   = "copy"
)

// endless is the end under the mode off.
const endless = "endless"

// step is one call of the handler, or one decision without one, and what follows.
type step struct {
	After         millis `json:"after_ms"`
	ShortestAfter millis `json:"shortest_after_ms"`
	Attempt       int    `json:"attempt"`
	Attempts      int    `json:"attempts"`
	Try           int    `json:"try"`
	Outcome       string `json:"outcome"`
	Error         string `json:"error,omitempty"`
	Verdict       string `json:"verdict"`
	// Queue in which it lies then; empty when it is gone. By whom it is brought there: the broker,
	// or a copy.
	Queue        string            `json:"queue,omitempty"`
	By           string            `json:"by,omitempty"`
	Wait         millis            `json:"wait_ms"`
	ShortestWait millis            `json:"shortest_wait_ms"`
	Headers      map[string]string `json:"headers,omitempty"`

	verdict retry.Verdict
}

// millis is a time in JSON.
type millis time.Duration

// MarshalJSON writes whole milliseconds, which all times of a life have.
func (m millis) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, time.Duration(m).Milliseconds(), 10), nil
}

// timelineOf puts together the lives with the longest and with the shortest waits.
func timelineOf(o options, plan topology.Plan, policy config.Policy, long, short retrytest.Result) timeline {
	t := timeline{
		Topic: o.topic, Queue: o.queue, Mode: policy.Mode, Strategy: policy.Strategy,
		End: string(long.End), Calls: long.Calls(),
		Total: millis(long.Ended.Sub(long.Began)), ShortestTotal: millis(short.Ended.Sub(short.Began)),
		differs: len(long.Steps) != len(short.Steps) || long.End != short.End,
	}
	for i, s := range long.Steps {
		line := step{
			After: millis(s.At.Sub(long.Began)), ShortestAfter: millis(s.At.Sub(long.Began)),
			Attempt: s.Attempt.Number, Attempts: s.Attempt.MaxRetries + 1, Try: s.Attempt.Try,
			Outcome: outcome(s), Verdict: text(s.Verdict), Queue: place(plan, s.Verdict),
			Wait: millis(s.Waited), ShortestWait: millis(s.Waited), verdict: s.Verdict,
		}
		switch {
		case s.Verdict.ByBroker:
			line.By = byBroker
			if policy.Strategy.CountsReturns() {
				line.Queue = o.queue // which it does not leave
			}
		case s.Headers != nil:
			line.By, line.Headers = byCopy, o.typed(s.Headers)
		}
		if s.Err != nil {
			line.Error = s.Err.Error()
		}
		if !t.differs {
			line.ShortestAfter, line.ShortestWait = millis(short.Steps[i].At.Sub(short.Began)),
				millis(short.Steps[i].Waited)
		}
		t.Steps = append(t.Steps, line)
		t.Reason = string(s.Verdict.Reason)
	}

	return t
}

func outcome(s retrytest.Step) string {
	switch {
	case s.Err == nil && s.Verdict.Action == "":
		return "succeeded"
	case s.Calls == 0:
		return "not handled"
	case s.Class == retry.ClassError:
		return "failed"
	default:
		return "failed (" + string(s.Class) + ")"
	}
}

// place is the queue in which a message lies after a verdict; with exact delays the ladder, of
// which it has one or more queues.
func place(plan topology.Plan, v retry.Verdict) string {
	switch v.Action {
	case retry.ActionDeadLetter:
		return plan.DeadLetterQueue
	case retry.ActionRetry, retry.ActionPostpone:
		if plan.Ladder != nil {
			return plan.Ladder.Name()
		}
		i := slices.IndexFunc(plan.Queues, func(q topology.Queue) bool { return q.Delay == v.Delay })
		if i >= 0 {
			return plan.Queues[i].Name
		}
	case retry.ActionRetryNow, retry.ActionDrop, retry.ActionRequeue:
	}

	return ""
}

// simulatedType is that of the errors of the simulated handler.
const simulatedType = "*errors.errorString"

// typed are headers with the type that the error is said to have. What is new for each publish is
// not shown.
func (o options) typed(headers map[string]string) map[string]string {
	if headers == nil {
		return nil
	}
	errorType := simulatedType
	if o.errorType != "" {
		errorType = wire.Text(o.errorType, wire.MaxErrorTypeBytes)
	}
	inJSON, _ := json.Marshal(errorType) // a text

	typed := maps.Clone(headers)
	if _, ok := typed[header.ErrorType]; ok {
		typed[header.ErrorType] = errorType
	}
	if history, ok := typed[header.History]; ok {
		typed[header.History] = strings.ReplaceAll(history, `"type":"`+simulatedType+`"`, `"type":`+string(inJSON))
	}
	typed[header.ID] = "(new for each publish)"

	return typed
}
