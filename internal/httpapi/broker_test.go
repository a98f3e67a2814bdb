package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// The bodies are those of RabbitMQ 3.10 to 4.3. The command doctor is tested against real ones.

func TestPoliciesAndLimits(t *testing.T) {
	const (
		json     = "application/json"
		policies = `[{"vhost":"/","name":"p","pattern":"^q$","apply-to":"all","definition":{"message-ttl":5000},"priority":7}]`
	)
	client := at(t, answer(200, json, policies))
	want := []httpapi.Policy{{VHost: "/", Name: "p", Pattern: "^q$", ApplyTo: "all", Priority: 7,
		Definition: httpapi.Arguments{"message-ttl": int64(5000)}}}
	found, err := client.Policies(t.Context())
	require.NoError(t, err)
	assert.Equal(t, want, found)
	found, err = client.OperatorPolicies(t.Context())
	require.NoError(t, err)
	assert.Equal(t, want, found)

	for body, want := range map[string]map[string]int64{
		`[]`: {},
		`[{"vhost":"/","value":{"max-queues":5,"max-connections":-1}}]`: {"max-queues": 5, "max-connections": -1},
	} {
		limits, err := at(t, answer(200, json, body)).Limits(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, limits)
	}

	nodes, err := at(t, answer(200, json,
		`[{"name":"a","running":true,"mem_alarm":true,"disk_free_alarm":false,"partitions":["b"]},{"name":"b","running":false}]`)).Nodes(t.Context())
	require.NoError(t, err)
	yes, no := true, false
	assert.Equal(t, []httpapi.Node{{Name: "a", Running: true, MemoryAlarm: &yes, DiskAlarm: &no,
		Partitions: []string{"b"}}, {Name: "b"}}, nodes)

	flags, err := at(t, answer(200, json, `[{"name":"quorum_queue","state":"enabled","stability":"stable"}]`)).
		FeatureFlags(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []httpapi.FeatureFlag{{Name: "quorum_queue", State: "enabled"}}, flags)

	client = at(t, answer(200, json,
		`[{"source":"x","vhost":"/","destination":"q","destination_type":"queue","routing_key":"k","arguments":{}},
		{"source":"x","vhost":"/","destination":"y","destination_type":"exchange","routing_key":"","arguments":{}}]`))
	toQueue := httpapi.Binding{VHost: "/", Exchange: "x", Queue: "q", Key: "k", Arguments: httpapi.Arguments{}}
	toExchange := httpapi.Binding{VHost: "/", Exchange: "x", ToExchange: "y", Arguments: httpapi.Arguments{}}
	bindings, err := client.BindingsFrom(t.Context(), "x")
	require.NoError(t, err)
	assert.Equal(t, []httpapi.Binding{toQueue}, bindings)
	bindings, err = client.RoutesFrom(t.Context(), "x")
	require.NoError(t, err)
	assert.Equal(t, []httpapi.Binding{toQueue, toExchange}, bindings)
}

// What a queue does not tell is nil, and nothing else: no policy is not the same as no statistics.
func TestPoliciesOfAQueue(t *testing.T) {
	for body, effective := range map[string]httpapi.Arguments{
		``: nil,
		`,"policy":null,"effective_policy_definition":{}`:                       {},
		`,"policy":null,"effective_policy_definition":[]`:                       {},
		`,"policy":"p","effective_policy_definition":{"max-length":3}`:          {"max-length": int64(3)},
		`,"operator_policy":"o","effective_policy_definition":{"overflow":"x"}`: {"overflow": "x"},
	} {
		q, err := at(t, answer(200, "application/json", `{"name":"q","vhost":"/"`+body+`}`)).Queue(t.Context(), "q")
		require.NoError(t, err)
		assert.Equal(t, effective, q.Effective, body)
	}
}

// An answer about another virtual host, or another object, is none.
func TestAnswersAboutOthers(t *testing.T) {
	ask := map[string]func(*httpapi.Client) error{
		`[{"vhost":"v","name":"p"}]`:   func(c *httpapi.Client) error { _, err := c.Policies(t.Context()); return err },
		`[{"vhost":"v","name":"x"}]`:   func(c *httpapi.Client) error { _, err := c.Exchanges(t.Context()); return err },
		`[{"vhost":"v","value":{}}]`:   func(c *httpapi.Client) error { _, err := c.Limits(t.Context()); return err },
		`[{"vhost":"/","source":"y"}]`: func(c *httpapi.Client) error { _, err := c.BindingsFrom(t.Context(), "x"); return err },
		`{"vhost":"/","user":"other"}`: func(c *httpapi.Client) error { _, err := c.Permissions(t.Context(), "user"); return err },
	}
	for body, question := range ask {
		err := question(at(t, answer(200, "application/json", body)))
		require.ErrorContains(t, err, "the answer is about", body)
		assert.NotContains(t, err.Error(), "secret")
	}
}

func TestQuestionsAreAboutTheVirtualHost(t *testing.T) {
	var path string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.RequestURI
		answer(401, "application/json", `{"error":"not_authorised","reason":"Not administrator user"}`)(w, r)
	}))
	defer server.Close()
	client, err := httpapi.New(strings.Replace(server.URL, "//", "//user@", 1), "/a b", nil)
	require.NoError(t, err)

	_, err = client.Permissions(t.Context(), "u/v")
	require.ErrorContains(t, err, "the tag administrator")
	assert.Equal(t, "/api/permissions/%2Fa%20b/u%2Fv", path)
	_, err = client.Nodes(t.Context())
	require.ErrorContains(t, err, "the tag monitoring")
	_, err = client.BindingsFrom(t.Context(), "x")
	require.Error(t, err)
	assert.Equal(t, "/api/exchanges/%2Fa%20b/x/bindings/source", path)
}
