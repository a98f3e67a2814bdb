package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/testkit/alertrules"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

var pasted = regexp.MustCompile("`amqpretry ([^`]*)`")

// commandsOf returns the arguments of each command in the description of an alert, as a shell splits them.
func commandsOf(t *testing.T, rule alertrules.Rule, labels map[string]string) (all [][]string) {
	t.Helper()
	for _, line := range pasted.FindAllStringSubmatch(rule.Render(t, "description", labels, "3"), -1) {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' `+line[1]).Output()
		require.NoError(t, err, line[1])
		all = append(all, strings.Split(strings.TrimSpace(string(out)), "\n"))
	}

	return all
}

// Each alert has a command, filled in with its labels, that can be pasted whatever these are.
func TestCommandsOfAlerts(t *testing.T) {
	const queue = "new orders$HOME"
	labels := map[string]string{"job": "shop", "instance": "10.0.0.7:2112", "topic": queue, "main_queue": queue,
		"handler": "ship it", "reason": "exhausted", "fingerprint": "a492b9c065e2", "vhost": "/", "queue": queue}
	queues := map[string]string{"DeadLetterQueueNotEmpty": "dead orders", "LandingQueueNotDraining": queue + ".landing",
		"DelayedMessagesUnroutable": "amqpretry.delay.v1.100ms.10x6.unroutable"}
	wanted := map[string][][]string{
		"DeadLettersArriving":     {{"dlq", "stat", queue, "--reason", "exhausted"}, {"dlq", "list"}},
		"NewKindOfFailure":        {{"dlq", "list", queue, "--fingerprint", "a492b9c065e2"}},
		"DeadLetterQueueNotEmpty": {{"dlq", "stat", queue, "--dead-letter-queue", "dead orders"}},
		"DeadLetterHandlerFails":  {{"dlq", "list", queue}},
		"DeliveriesHeld":          {{"doctor", queue}},
		"RetriesGrowing":          {{"doctor", queue}},
		"DelayedMessagesUnroutable": {
			{"delays", "unroutable", "list", "--ladder", "amqpretry.delay.v1.100ms.10x6"},
		},
		"LandingQueueNotDraining": {{"doctor", queue, "--vhost", "/"}},
		"ManyCallsFail":           {{"dlq", "stat", queue, "--handler", "ship it"}},
		"QueueDepthsUnknown":      {{"doctor"}},
	}
	for _, rule := range alertrules.Read(t, "../../middleware/metrics/alerts.yaml") {
		labels["queue"] = queue
		if name, ok := queues[rule.Alert]; ok {
			labels["queue"] = name
		}
		commands := commandsOf(t, rule, labels)
		assert.Equal(t, wanted[rule.Alert], commands, rule.Alert)
		for _, args := range commands {
			canBeTyped(t, args)
		}
		if rule.Alert == "RetriesGrowing" { // of retry queues that main queues share
			delete(labels, "main_queue")
			assert.Equal(t, [][]string{{"doctor"}}, commandsOf(t, rule, labels))
			labels["main_queue"] = queue
		}
		if rule.Alert == "NewKindOfFailure" {
			labels["fingerprint"] = "other"
			others := commandsOf(t, rule, labels)
			assert.Equal(t, [][]string{{"dlq", "stat", queue, "--by", "fingerprint"}}, others)
			canBeTyped(t, others[0])
			labels["fingerprint"] = "a492b9c065e2"
		}
	}
}

// The commands of the alerts about dead letters find these.
func TestCommandsOfAlertsFindDeadLetters(t *testing.T) {
	broker := rabbit.New(t, brokertest.URI(t))
	queue := "alerts-" + watermill.NewShortUUID()
	dead, arguments := deadletter.Queue(t, queue)
	broker.Declare(dead, arguments)
	broker.Publish(dead, deadletter.New(queue, 1), deadletter.New(queue, 2))
	cause := retry.Cause{Error: "card 3 declined", ErrorType: "*cards.DeclinedError", Handler: "charge"}
	labels := map[string]string{"topic": queue, "main_queue": queue, "queue": dead, "reason": "exhausted",
		"handler": "charge", "fingerprint": cause.Fingerprint()}
	ran := 0
	for _, rule := range alertrules.Read(t, "../../middleware/metrics/alerts.yaml") {
		for _, args := range commandsOf(t, rule, labels) {
			if args[0] != "dlq" || len(args) == 2 { // dlq list asks the management API
				continue
			}
			ran++
			var out, stderr strings.Builder
			s := cli.NewSession()
			s.Out, s.Err = &out, &stderr
			args = append(args, "--uri", broker.URI, "--no-delivery-limit-policy")
			require.Equal(t, cli.ExitOK, cli.Run(t.Context(), s, args, commands...), "%s: %v: %s", rule.Alert, args,
				&stderr)
			assert.Regexp(t, `(?m)^messages +2$|^2  uuid-2 `, out.String(), rule.Alert)
		}
	}
	assert.Equal(t, 5, ran)
}

// Each command of the runbooks can be typed.
func TestCommandsOfRunbooks(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/runbooks.md")
	require.NoError(t, err)
	lines := regexp.MustCompile("(?m)^amqpretry .*|`amqpretry [^`]*`").FindAllString(string(page), -1)
	assert.Greater(t, len(lines), 10)
	for _, line := range lines {
		canBeTyped(t, strings.Fields(strings.Trim(line, "`"))[1:])
	}
}
