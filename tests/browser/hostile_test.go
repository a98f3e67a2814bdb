package browser

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/retry"
)

// hostile are texts that try to become a part of the page.
var hostile = []string{
	`<script>alert(1)</script>`,
	`"><img src=x onerror=alert(1)>`,
	`'><svg onload=alert(1)>`,
	`javascript:alert(1)`,
	`</textarea><script>alert(1)</script>`,
	`</pre></code></title><script>alert(1)</script>`,
	`</select></option><iframe srcdoc="<script>alert(1)</script>">`,
	`{{.}}{{printf "%s" .}}${alert(1)}`,
	`<base href="https://evil.example/">`,
	`<meta http-equiv="refresh" content="0;url=https://evil.example/">`,
	`<style>*{background:url(https://evil.example/)}</style>`,
	`<a href="javascript:alert(1)" style="position:fixed;inset:0">x</a>`,
	`&lt;script&gt;alert(1)&lt;/script&gt;`,
	`<!--`, `]]>`, `\u003cscript\u003e`,
	"a\r\nSet-Cookie: stolen=1\r\n\r\n<script>alert(1)</script>",
	"\u202egnirts\u2066\u2028\u2029", "\x00\x01\x1b[31m\x7f",
	strings.Repeat("A", 3000),
}

// No message ever runs anything: whatever its body, its headers, their names and its error say.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dead := w.queue + ".dlq"
	for i, text := range hostile {
		state := deadletter.State(w.queue, i)
		state.Error, state.ErrorType, state.Handler, state.Topic, state.Host = text, text, text, text, text
		state.Reason = retry.Reason(text)
		state.History = []retry.FailedCall{{Number: 1, At: deadletter.Died, Error: text, Type: text}}
		m := deadletter.Message(state, fmt.Sprintf("%d %s", i, text), text)
		m.ContentType, m.CorrelationId, m.AppId = cut(text), cut(text), cut(text)
		m.Headers[cut(text)] = text
		w.Publish(dead, m)
	}
	w.Has(dead, len(hostile))
	b := newTab(t)
	by := mouse{b}

	query := url.Values{"queue": {dead}}
	for _, path := range []string{"", "queue?" + query.Encode(), "runs", "plan?kind=replay&" + query.Encode()} {
		b.open(w.at(path))
		b.sees("Dead letters")
	}
	for i, text := range hostile {
		uuid := url.Values{"queue": {dead}, "uuid": {fmt.Sprintf("%d %s", i, text)}}
		b.open(w.at("message?" + uuid.Encode()))
		b.sees("Why it failed")
		for _, filter := range []string{"error", "header", "text", "handler", "fingerprint", "json-field", "reason"} {
			b.open(w.at("queue?" + url.Values{"queue": {dead}, filter: {text + "=" + text}}.Encode()))
			b.sees("Dead letters")
		}
		b.open(w.at("queue?" + url.Values{"queue": {text}}.Encode()))
		b.sees("Dead letters")
		b.open(w.at("run?" + url.Values{"id": {text}}.Encode()))
		b.sees("Dead letters")
	}

	// An edit, its diff, and a run with all of it.
	b.open(w.at("message?" + url.Values{"queue": {dead}, "uuid": {"0 " + hostile[0]}}.Encode()))
	by.press("Edit and replay Change body or headers")
	b.do(chromedp.SendKeys(`//textarea[@name="body"]`, hostile[4]))
	by.press("Show what changes")
	b.sees("What changes")
	by.press("Plan the replay")
	b.sees("can be replayed")
	assert.Contains(t, b.path(), "/dead-letters/")
	b.clean()
}

// cut is as much as a property or the name of a header has room for.
func cut(text string) string { return text[:min(len(text), 250)] }

// The check itself: an inline script and a style are seen.
func TestViolationsAreSeen(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		_, _ = w.Write([]byte(`<script>alert(1)</script><p style="color:red">x</p>`))
	}))
	defer server.Close()
	b := newTab(t)
	b.open(server.URL)
	await.Until(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.problems) >= 2
	}, "both are seen")
}

// A page of another site can send no form to the console.
func TestCrossSite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.die("order-1")
	form := fmt.Sprintf(`<!doctype html><form method="post" action=%q><input name="kind" value="purge"><input name="queue"
		value=%q><button>Win a prize</button></form>`, w.at("plan"), w.queue+".dlq")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(form))
	}))
	defer other.Close()
	b := newTab(t)
	b.open(strings.Replace(other.URL, "127.0.0.1", "localhost", 1))
	mouse{b}.press("Win a prize")
	b.sees("This request came from another site")
	b.open(w.at("runs"))
	b.sees("No runs yet")
	w.Has(w.queue+".dlq", 1)
	b.clean()
}
