package servecmd

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
)

// A new cause is sent with the address of its page, again after a refusal, and the log has no
// address of the webhook.
func TestWebhook(t *testing.T) {
	var tries atomic.Int64
	bodies := make(chan []byte, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries.Add(1) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		body, _ := io.ReadAll(r.Body)
		bodies <- body
	}))
	defer server.Close()
	var log bytes.Buffer
	o := options{webhook: server.URL + "/secret", publicURL: "https://ops.example.com/dead/"}
	hook, err := o.newWebhook(slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	hook.pause = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); hook.run(ctx) }()
	hook.add(dlqweb.NewCause{Queue: "orders.dlq", Pattern: "connection refused", Reason: "exhausted", Messages: 3,
		Page: "queue?fingerprint=0123456789ab&queue=orders.dlq"})
	var sent map[string]any
	require.NoError(t, json.Unmarshal(<-bodies, &sent))
	cancel()
	<-ended
	assert.Equal(t, "https://ops.example.com/dead/queue?fingerprint=0123456789ab&queue=orders.dlq", sent["url"])
	assert.Equal(t, "New cause in orders.dlq: connection refused (exhausted, 3 so far) "+sent["url"].(string),
		sent["text"])
	assert.Contains(t, log.String(), "it answered 500")

	server.Close()
	hook.send(t.Context(), dlqweb.NewCause{})
	assert.Contains(t, log.String(), "connection refused")
	assert.NotContains(t, log.String(), "secret")
}

// A webhook that does not answer holds up nothing.
func TestWebhook_Full(t *testing.T) {
	var log bytes.Buffer
	hook, err := options{webhook: "http://127.0.0.1:1"}.newWebhook(slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	for range mostHooks + 1 {
		hook.add(dlqweb.NewCause{})
	}
	assert.Contains(t, log.String(), "too many wait")
	for _, o := range []options{{webhook: "hooks.example.com"}, {webhook: "ftp://x/secret"}, {publicURL: "https://x"},
		{webhook: "http://x", publicURL: "/dead"}} {
		_, err := o.newWebhook(nil)
		require.Error(t, err, o)
		assert.NotContains(t, err.Error(), "secret")
	}
}
