package dlq_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/management"
)

// RabbitMQ 4.4 holds messages back that AMQP does not count. What cannot be counted is not called
// empty.
//
// The broker here is an earlier one that the client takes for 4.4, and the API is made up: what is
// tested is whom the client asks, and what it makes of the answer.
func TestHiddenMessages(t *testing.T) {
	t.Parallel()
	f := onBroker(t, nil)
	answer := ""
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"name": "` + f.queue.Name() +
			`", "vhost": "/", "type": "quorum", "arguments": {"x-delivery-limit": 2147483647},
			"effective_policy_definition": {}` + answer + `}`))
	}))
	defer api.Close()
	open := func(version, url string) *dlq.Queue {
		client, err := dlq.Open(t.Context(), dlq.Config{URI: f.URI, NoDeliveryLimitPolicy: true,
			Management: management.API{URL: url}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		client.Pretend(version)

		return client.Queue(f.main)
	}
	const held = `, "messages": 3, "messages_ready": 0, "messages_unacknowledged": 0, "messages_dlx": 0`

	for _, test := range []struct {
		name, version, answer string
		api                   bool
		ready                 int
		hidden                int // nothing is told if it is refused
		refused               bool
	}{
		{name: "before 4.4", version: "4.3.6", ready: 0},
		{name: "before 4.4, with the API", version: "4.3.6", api: true, answer: held, ready: 0},
		{name: "empty, without the API", version: "4.4.0-rc.1", refused: true},
		{name: "empty, and the API does not know", version: "4.4.0", api: true, refused: true},
		{name: "empty, as the API says", version: "4.10.0", api: true,
			answer: `, "messages": 0, "messages_ready": 0, "messages_unacknowledged": 0`},
		{name: "held back, as the API says", version: "4.4.0", api: true, answer: held + `, "messages_delayed": 3`,
			hidden: 3},
		{name: "held back, as the numbers say", version: "0.0.0", api: true, answer: held, hidden: 3},
		{name: "some, without the API", version: "4.4.0", ready: 2, hidden: -1},
		{name: "some, with the API", version: "4.4.0", api: true, answer: held, ready: 2, hidden: 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			f.fill(test.ready)
			answer = test.answer
			url := ""
			if test.api {
				url = api.URL
			}
			queue := open(test.version, url)
			depth, err := queue.Depth(t.Context())
			stat, statErr := queue.Stat(t.Context(), dlq.Filter{})
			report, reportErr := queue.Run(t.Context(), dlq.Plan{Kind: dlq.Purge})
			if test.refused {
				for _, err := range []error{err, statErr, reportErr} {
					var hidden *dlq.HiddenError
					require.ErrorAs(t, err, &hidden)
					assert.Equal(t, f.queue.Name(), hidden.Queue)
				}
				return
			}
			require.NoError(t, err)
			require.NoError(t, statErr)
			require.NoError(t, reportErr)
			assert.Equal(t, test.ready+max(0, test.hidden), depth)
			assert.Equal(t, []int{test.ready, test.hidden}, []int{stat.Ready, stat.Hidden})
			assert.Equal(t, []int{test.ready, test.hidden}, []int{report.Done, report.Hidden})
		})
	}
}
