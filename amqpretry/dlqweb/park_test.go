package dlqweb_test

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/retry"
)

// causesOn are the fingerprints of a page's table of causes, in their order.
func causesOn(page string) []string {
	var ids []string
	for _, found := range regexp.MustCompile(`id="cause-([0-9a-f]{12})"`).FindAllStringSubmatch(page, -1) {
		ids = append(ids, found[1])
	}

	return ids
}

// publishCause puts n dead letters with an error of its own into the dead-letter queue.
func (f *fixture) publishCause(text string, n int) {
	f.t.Helper()
	for i := range n {
		state := deadletter.State(f.main, i)
		state.Error = text
		f.Publish(f.dead, deadletter.Message(state, text+strings.Repeat("i", i), "{}"))
	}
}

// A parked cause stands at the end with its note, also after the console was started again, and its
// messages stay.
func TestPark(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.publishCause("down", 3)
	f.publishCause("refused", 2)
	before := causesOn(f.looked("/queue?queue="+f.dead, nil).Body)
	require.Len(t, before, 2)
	form := url.Values{"queue": {f.dead}, "fingerprint": {before[0]}, "note": {" waits for <the> new provider "}}
	require.Equal(t, http.StatusSeeOther, f.post("/park", form).Status)
	f.server.Close()
	require.NoError(t, f.console.Close())

	f.open()
	page := f.looked("/queue?queue="+f.dead, nil).Body
	assert.Equal(t, []string{before[1], before[0]}, causesOn(page))
	assert.Contains(t, page, "waits for &lt;the&gt; new provider")
	f.role = dlqweb.RoleMetadata
	assert.NotContains(t, f.looked("/queue?queue="+f.dead, nil).Body, "new provider")
	assert.Equal(t, http.StatusForbidden, f.post("/park", form).Status)
	f.role = dlqweb.RoleReplay
	form.Set("note", strings.Repeat("x", 501))
	assert.Equal(t, http.StatusBadRequest, f.post("/park", form).Status)
	form.Set("note", "")
	f.auditLog.refuse(true)
	assert.Equal(t, http.StatusServiceUnavailable, f.post("/park", form).Status)
	f.auditLog.refuse(false)
	require.Equal(t, http.StatusSeeOther, f.post("/park", form).Status)
	assert.Equal(t, before, causesOn(f.looked("/queue?queue="+f.dead, nil).Body))
	drain.N(t, f.Client, f.dead, 5)
}

// A file of parked causes that cannot be read is told, and stays.
func TestParkedThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	require.NoError(t, f.console.Close())
	path := filepath.Join(f.config.Folder, "parked.json")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, err := dlqweb.New(f.config)
	require.ErrorContains(t, err, path)
	require.NoError(t, os.WriteFile(path, []byte("null"), 0o600))
	f.open()
	assert.Equal(t, http.StatusSeeOther, f.post("/park", url.Values{"queue": {f.dead}, "fingerprint": {"0123456789ab"},
		"note": {"x"}}).Status)
}

// A cause that was not there before is told once, without anything of a message but the pattern of
// its error.
func TestOnNewCause(t *testing.T) {
	t.Parallel()
	news := make(chan dlqweb.NewCause, 10)
	f := start(t, func(c *dlqweb.Config) { c.OnNewCause = func(n dlqweb.NewCause) { news <- n } })
	f.publishCause("down", 2)
	look := dlqweb.CausesOf(t, f.console, f.dead, f.main)
	look()
	f.publishCause("customer 17 is unknown", 3)
	for range 2 {
		look()
	}
	require.Len(t, news, 1)
	n := <-news
	assert.Equal(t, f.dead, n.Queue)
	assert.Equal(t, 3, n.Messages)
	assert.Equal(t, "customer <n> is unknown", n.Pattern)
	told := retry.Cause{Error: "customer 18 is unknown", ErrorType: n.ErrorType, Handler: n.Handler}
	assert.Equal(t, told.Fingerprint(), n.Fingerprint, "that of the events")
	assert.Contains(t, f.looked("/"+n.Page, nil).Body, `<dd class="big">3 <small>of 5</small></dd>`)
}
