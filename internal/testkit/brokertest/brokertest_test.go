package brokertest_test

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// What the fault tests build on: a broker that was killed comes back at the same address with what
// it had confirmed.
func TestBroker_KillAndStartKeepDataAndPort_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)
	uri := broker.URI
	assert.NotEqual(t, os.Getenv("AMQP_URI"), uri, "a private broker is not the shared one")
	client := rabbit.New(t, uri)
	client.Declare("kept", nil)
	client.Publish("kept", rabbit.Message("1", "hello"))
	broker.Settle()

	broker.Kill()
	_, err := amqp.Dial(uri)
	require.Error(t, err, "a killed broker must not answer")

	broker.Start()
	require.Equal(t, uri, broker.URI)
	channel := client.Channel()
	assert.Equal(t, []string{"hello"}, rabbit.Bodies(client.Drain("kept")), "the confirmed message is lost")

	// Frozen, it answers nothing; thawed, it goes on.
	broker.Pause()
	_, err = amqp.DialConfig(uri, amqp.Config{Dial: amqp.DefaultDial(300 * time.Millisecond)})
	require.Error(t, err)
	broker.Resume()
	assert.Contains(t, broker.Ctl("list_queues", "name"), "kept")
	_, err = channel.QueueDelete("kept", false, false, false)
	require.NoError(t, err, "the connection has survived the pause")

	broker.Stop()
	_, err = amqp.Dial(uri)
	require.Error(t, err, "a stopped broker must not answer")
}

// The API answers as soon as the broker has started, with the statistics that it can switch off,
// and nobody but this machine reaches it.
func TestBroker_ManagementAnswersAfterEachStart_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.StartWithManagement(t)
	address := broker.ManagementURL
	overview := func() string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+
			"/api/overview?columns=disable_stats", nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.Status + " " + string(body)
	}
	assert.True(t, strings.HasPrefix(address, "http://guest:guest@127.0.0.1:"), address)
	assert.Equal(t, `200 OK {"disable_stats":false}`, overview())
	broker.Kill()
	broker.Start()
	assert.Equal(t, `200 OK {"disable_stats":false}`, overview())
}
