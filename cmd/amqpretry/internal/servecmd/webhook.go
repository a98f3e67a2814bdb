package servecmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

const (
	// hookTimeout is how long one request may take, hookTries how often it is made, hookPause how
	// long it rests between two, and between two causes.
	hookTimeout = 5 * time.Second
	hookTries   = 3
	hookPause   = time.Second
	// mostHooks is how many causes wait to be sent. Further ones are logged only.
	mostHooks = 100
)

// notice is the body of a request: Slack, Mattermost and Teams show text.
type notice struct {
	Text string `json:"text"`
	dlqweb.NewCause
	URL string `json:"url"`
}

// webhook sends new causes to an address.
type webhook struct {
	address, console string
	log              *slog.Logger
	client           *http.Client
	causes           chan dlqweb.NewCause
	pause            time.Duration
}

// newWebhook checks the flags; nil without --webhook.
func (o options) newWebhook(log *slog.Logger) (*webhook, error) {
	if o.webhook == "" {
		if o.publicURL != "" {
			return nil, cli.Usage("--public-url needs --webhook")
		}
		return nil, nil
	}
	for flag, text := range map[string]string{"--webhook": o.webhook, "--public-url": o.publicURL} {
		parsed, err := url.Parse(text)
		if text != "" && (err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "") {
			return nil, cli.Usage("%s: must be an http or https address", flag) // it may have a secret
		}
	}

	return &webhook{address: o.webhook, console: strings.TrimSuffix(o.publicURL, "/"), log: log,
		client: &http.Client{Timeout: hookTimeout}, causes: make(chan dlqweb.NewCause, mostHooks),
		pause: hookPause}, nil
}

// add is a dlqweb.Config.OnNewCause: it never waits.
func (h *webhook) add(c dlqweb.NewCause) {
	select {
	case h.causes <- c:
	default:
		h.log.Warn("Cannot send a new cause to the webhook: too many wait", "queue", c.Queue, "fingerprint",
			c.Fingerprint)
	}
}

// run sends until the context ends.
func (h *webhook) run(ctx context.Context) {
	for {
		select {
		case c := <-h.causes:
			h.send(ctx, c)
		case <-ctx.Done():
			return
		}
		h.rest(ctx)
	}
}

func (h *webhook) rest(ctx context.Context) {
	select {
	case <-time.After(h.pause):
	case <-ctx.Done():
	}
}

func (h *webhook) send(ctx context.Context, c dlqweb.NewCause) {
	what := c.Pattern
	if what == "" {
		what = c.ErrorType
	}
	n := notice{NewCause: c, URL: h.console + "/" + c.Page}
	n.Text = fmt.Sprintf("New cause in %s: %s (%s, %d so far) %s", c.Queue, what, c.Reason, c.Messages, n.URL)
	body, err := json.Marshal(n)
	for try := 1; err == nil && try <= hookTries && ctx.Err() == nil; try++ {
		if try > 1 {
			h.rest(ctx)
		}
		if err = h.post(ctx, body); err == nil {
			return
		}
		h.log.Warn("Cannot send a new cause to the webhook", "queue", c.Queue, "fingerprint", c.Fingerprint, "try", try,
			"error", withoutAddress(err))
		err = nil
	}
}

// withoutAddress is an error without the address of the webhook, which may have a secret.
func withoutAddress(err error) string {
	if failed, ok := err.(*url.Error); ok { //nolint:errorlint // as http.Client returns it
		return failed.Err.Error()
	}

	return err.Error()
}

func (h *webhook) post(ctx context.Context, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := h.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, 1<<16)
	if answer.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("it answered %s", answer.Status)
	}

	return nil
}
