package dlqweb_test

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// delayed is a console over a main queue with retry queues.
type delayed struct {
	*fixture
	retries topology.Plan
}

func startDelayed(t *testing.T, change func(*dlqweb.Config)) *delayed {
	t.Helper()
	policy := config.Policy{Delays: []time.Duration{time.Minute, time.Hour}}
	d := &delayed{fixture: start(t, func(c *dlqweb.Config) {
		c.Policies.Default = policy
		if change != nil {
			change(c)
		}
	})}
	var err error
	d.retries, err = topology.New(d.main, policy, topology.Names{})
	require.NoError(t, err)
	t.Cleanup(func() { d.RemovePlan(d.retries) })
	d.Do(func(channel *amqp091.Channel) error {
		for _, q := range d.retries.Queues { // the tests have the main queue, and the dead-letter queue
			if q.Name == d.main || q.Name == d.dead {
				_, err := channel.QueueDelete(q.Name, false, false, false)
				require.NoError(t, err)
			}
		}
		return d.retries.Declare(channel)
	})

	return d
}

// retry sends a message to wait, as the service does.
func (d *delayed) retry(uuid string, delay time.Duration) {
	d.t.Helper()
	now := time.Now()
	s := wire.State{Count: 1, Attempts: 1, Queue: d.main, Topic: d.main, Delay: config.FormatDelay(delay),
		Due: now.Add(delay), LastFailure: now, FirstFailure: now, Since: now, Error: "boom of " + uuid}
	m := rabbit.Message(uuid, uuid)
	m.DeliveryMode = amqp091.Persistent
	for key, value := range s.Headers("id-" + uuid) {
		m.Headers[key] = value
	}
	exchange, key := d.retries.Route(1, delay, &m)
	d.PublishTo(exchange, key, m)
}

// ran plans a run by the form, and confirms it.
func (f *fixture) ran(form url.Values) run {
	f.t.Helper()
	a := f.post("/plan", form)
	require.Equal(f.t, http.StatusSeeOther, a.Status, a.Body)
	id := strings.TrimPrefix(a.Header.Get("Location"), "run?id=")
	f.await(id, "ready")
	require.Equal(f.t, http.StatusOK, f.confirm(id).Status)

	return f.await(id, "done", "failed")
}

// waiting is the page of what waits once it was read again.
func (d *delayed) waiting(filter string) string {
	d.t.Helper()
	d.getOnce("/waiting?refresh=now&queue=" + d.dead)
	var page string
	await.Until(d.t, func() bool {
		page = d.live("/waiting?queue=" + d.dead + filter).Body
		return !strings.Contains(page, "<progress") && strings.Contains(page, `class="read"`)
	}, "it was read")

	return page
}

// Messages that wait are read when somebody asks for it, and shown in the order in which they are
// due.
func TestWaiting(t *testing.T) {
	t.Parallel()
	d := startDelayed(t, nil)
	d.retry("late", time.Hour)
	d.retry("soon", time.Minute)
	d.Has(d.main+".retry.1m", 1)
	d.Has(d.main+".retry.1h", 1)
	path := "/waiting?queue=" + d.dead
	page := d.getOnce(path).Body
	assert.Contains(t, page, "Read now")
	assert.NotContains(t, d.live(path+"&refresh=now").Body, `id="live-reading"`)
	assert.Contains(t, d.getOnce(path).Body, "Read now", "nothing was read")

	page = d.waiting("")
	assert.Regexp(t, `(?s)in (5\d s|1 min)</time></td>.*>soon</a>.*boom of soon.*in 59 min</time></td>.*>late</a>`, page)
	assert.Contains(t, page, d.main+".retry.1m")
	assert.Contains(t, page, "Send 2 now…")
	page = d.getOnce(path + "&search=due-after:10m").Header.Get("Location")
	assert.Contains(t, page, "waiting?due-after=10m")
	page = d.getOnce("/" + page).Body
	assert.Contains(t, page, "Send 1 now…")
	assert.NotContains(t, page, "boom of soon")
	assert.Contains(t, d.getOnce(path+"&uuid=soon").Body, "Send 1 now…")
	assert.Contains(t, d.getOnce("/queue?queue="+d.dead).Body, `href="waiting?queue=`+d.dead)

	d.role = dlqweb.RoleMetadata
	assert.Equal(t, http.StatusForbidden, d.getOnce(path).Status)
	assert.Equal(t, http.StatusForbidden, d.getOnce("/api/v1/queues/"+d.dead+"/waiting").Status)
	assert.NotContains(t, d.getOnce("/queue?queue="+d.dead).Body, `href="waiting`)
	assert.NotContains(t, d.getOnce("/").Body, `href="waiting`)
	d.role = dlqweb.RoleView
	assert.NotContains(t, d.getOnce(path).Body, "now…")
	d.role = dlqweb.RoleReplay
	assert.NotContains(t, d.getOnce(path).Body, "Cancel…")
	assert.Equal(t, http.StatusForbidden, d.post("/plan", url.Values{"kind": {"cancel"}, "queue": {d.dead}}).Status)
}

// The undo of a cancellation that was interrupted goes on where it was.
func TestUndoOfWaitingGoesOn(t *testing.T) {
	t.Parallel()
	d := startDelayed(t, nil)
	d.retry("a", time.Hour)
	d.retry("b", time.Hour)
	d.Has(d.main+".retry.1h", 2)
	r := d.ran(url.Values{"kind": {"cancel"}, "queue": {d.dead}})
	require.Equal(t, 2, r.Done)
	undo := d.undone(r.ID)
	require.NoError(t, d.console.Close())
	edit := func(id, before, after string) {
		path := filepath.Join(d.config.Folder, id, "run.json")
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, []byte(replaceOnce(t, string(text), before, after)), 0o600))
	}
	edit(undo.ID, `"state": "done"`, `"state": "running"`)
	edit(undo.ID, `"lines": 2`, `"lines": 1`)
	edit(r.ID, `"undone_by"`, `"undone_before"`)
	d.open()
	assert.Contains(t, d.get("/run?id="+undo.ID).Body, "it goes on from here")
	assert.Equal(t, 1, d.undone(r.ID).Done)
	d.Has(d.main+".retry.1h", 3)
}

// Runs send, postpone and cancel messages that wait. A cancelled one waits again after the undo.
func TestRunsOfWaiting(t *testing.T) {
	t.Parallel()
	d := startDelayed(t, nil)
	for _, uuid := range []string{"send", "postpone", "cancel", "gone"} {
		d.retry(uuid, time.Minute)
	}
	d.Has(d.main+".retry.1m", 4)
	form := func(kind, uuid string) url.Values {
		return url.Values{"kind": {kind}, "queue": {d.dead}, "uuid": {uuid}}
	}
	page := d.get("/plan?" + form("cancel", "cancel").Encode()).Body
	assert.Contains(t, page, "Cancel messages that wait")
	assert.Contains(t, page, "Count them")
	assert.Contains(t, page, "amqpretry delays cancel --target="+d.main+" --uuid=cancel")
	assert.Contains(t, d.get("/plan?"+form("postpone", "x").Encode()).Body, `name="until" value="" required`)

	r := d.ran(form("send", "send"))
	assert.Equal(t, 1, r.Done)
	assert.False(t, r.Undo)
	assert.Equal(t, []string{"send"}, rabbit.Bodies(drain.N(t, d.Client, d.main, 1)))

	until := form("postpone", "postpone")
	assert.Equal(t, http.StatusBadRequest, d.post("/plan", until).Status)
	until.Set("until", "soon")
	assert.Equal(t, http.StatusBadRequest, d.post("/plan", until).Status)
	until.Set("until", "2020-01-01 00:00")
	assert.Contains(t, d.post("/plan", until).Body, "a time in the future")
	until.Set("until", "58m")
	r = d.ran(until)
	assert.Equal(t, 1, r.Done, r.Error)
	assert.Regexp(t, `in 59 min</time></td>\s*<td[^>]*><a [^>]*>postpone</a>`, d.waiting("&uuid=postpone"))

	r = d.ran(form("cancel", "cancel"))
	assert.Equal(t, 1, r.Done)
	assert.True(t, r.Undo)
	page = d.get("/run?id=" + r.ID).Body
	assert.Contains(t, page, "Undo…")
	assert.Contains(t, page, "messages that wait for "+d.main)
	assert.NotContains(t, d.waiting(""), ">cancel</a>")
	undo := d.undone(r.ID)
	assert.Equal(t, 1, undo.Done)
	assert.Contains(t, d.waiting(""), ">cancel</a>")
	assert.Contains(t, d.get("/run?id="+r.ID).Body, "It was undone by")
	assert.NotContains(t, d.get("/run?id="+r.ID).Body, "Undo…")

	counted := d.plan(`{"kind":"send","queue":"` + d.dead + `","filter":{"uuid":["gone"]}}`)
	assert.Equal(t, 1, counted.Plan.Matched)
	assert.Equal(t, 1, d.ran(form("cancel", "gone")).Done)
	d.confirm(counted.ID)
	assert.Equal(t, 0, d.await(counted.ID, "done").Done)
	assert.Contains(t, d.get("/run?id="+counted.ID).Body, "1 message no longer waited.")
	a := d.send(http.MethodPost, "/api/v1/runs", "application/json",
		`{"kind":"send","snapshot":"x","queue":"`+d.dead+`"}`)
	assert.Equal(t, http.StatusBadRequest, a.Status)
	d.Has(d.dead, 0)
}
