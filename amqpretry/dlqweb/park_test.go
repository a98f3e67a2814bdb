package dlqweb_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
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

// A parked cause stands at the end with its note, is no top cause, and its messages stay out of
// replays that do not name them.
func TestPark(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.publishCause("down", 3)
	f.publishCause("refused", 2)
	queue := "/queue?queue=" + f.dead
	before := causesOn(f.looked(queue, nil).Body)
	require.Len(t, before, 2)
	form := url.Values{"kind": {"park"}, "queue": {f.dead}, "fingerprint": {before[0]}}
	page := f.get("/plan?" + form.Encode()).Body
	assert.Contains(t, page, `<input name="note" value="" maxlength="500" required`)
	assert.Contains(t, page, "<strong>3</strong> of 5 messages would be parked")
	assert.Equal(t, http.StatusBadRequest, f.post("/plan", form).Status, "without a note")
	form.Set("note", strings.Repeat("x", 501))
	assert.Equal(t, http.StatusBadRequest, f.post("/plan", form).Status)
	form.Set("note", " waits for <the> new provider ")
	f.role = dlqweb.RoleView
	assert.Equal(t, http.StatusForbidden, f.post("/plan", form).Status)
	f.role = dlqweb.RoleReplay
	run := f.ran(form)
	assert.Equal(t, 3, run.Done)
	assert.False(t, run.Undo)
	records := f.auditLog.records(t)
	assert.Equal(t, "waits for <the> new provider", records[len(records)-1]["note"])
	assert.Contains(t, f.get("/run?id="+run.ID).Body, "waits for &lt;the&gt; new provider")

	page = f.looked(queue, nil).Body
	assert.Equal(t, []string{before[1], before[0]}, causesOn(page))
	assert.Contains(t, page, `waits for &lt;the&gt; new provider <span class="none">· ada`)
	page = f.get("/message?uuid=downi&queue=" + f.dead).Body
	assert.Regexp(t, `parked</span> waits for &lt;the&gt; new provider <span class="none">ada, <time`, page)
	assert.Contains(t, page, "Unpark…")
	f.role = dlqweb.RoleMetadata
	assert.NotContains(t, f.looked(queue, nil).Body, "new provider")
	assert.NotContains(t, f.get("/message?uuid=downi&queue="+f.dead).Body, "new provider")
	assert.NotContains(t, f.get("/api/v1/queues/"+f.dead).Body, "new provider")
	f.role = dlqweb.RoleReplay
	await.Until(t, func() bool { return strings.Contains(f.live("/").Body, "fingerprint="+before[1]) }, "the top cause")

	page = f.get("/plan?kind=replay&queue=" + f.dead).Body
	assert.Contains(t, page, "<strong>2</strong> of 5 messages would be replayed")
	assert.Contains(t, page, `<td class="number">3</td><td>parked</td>`)
	assert.Contains(t, page, `name="include-parked"`)
	page = f.get("/plan?kind=replay&include-parked=yes&queue=" + f.dead).Body
	assert.Contains(t, page, "<strong>5</strong> of 5 messages would be replayed")
	assert.Contains(t, page, "dlq replay "+f.main+" --include-parked")
	for _, filter := range []string{"fingerprint=" + before[0], "parked=true"} {
		page = f.get("/plan?kind=replay&queue=" + f.dead + "&" + filter).Body
		assert.Contains(t, page, "<strong>3</strong> of 5 messages would be replayed", filter)
		assert.NotContains(t, page, `name="include-parked"`)
	}

	assert.Equal(t, 3, f.ran(url.Values{"kind": {"unpark"}, "queue": {f.dead}}).Done, "no others")
	page = f.looked(queue, nil).Body
	assert.Equal(t, before, causesOn(page))
	assert.NotContains(t, page, "Unpark…")
	assert.Contains(t, f.get("/message?uuid=downi&queue="+f.dead).Body, "Unparked by ada")
	drain.N(t, f.Client, f.dead, 5)
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
