package dlqweb_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
)

// odd fills the queue with all that a plan leaves, warns of or counts: messages of another queue,
// with headers that cannot be read, with headers too large for a copy, without any, and replayed
// ones.
func (f *fixture) odd() {
	f.t.Helper()
	f.fill(0, 40)
	foreign := deadletter.State("another-queue", 1)
	deep := any(amqp091.Table{})
	for range 100 {
		deep = amqp091.Table{"x": deep}
	}
	unreadable := deadletter.New(f.main, 100)
	unreadable.Headers["deep"] = deep
	large := deadletter.New(f.main, 101)
	large.Headers["large"] = strings.Repeat("x", 130_200)
	replayed := deadletter.State(f.main, 3)
	replayed.Replays = 2
	parked := deadletter.State(f.main, 4)
	parked.Replays = 3
	f.Publish(f.dead, deadletter.Of(foreign, 102), unreadable, large, deadletter.Of(replayed, 103),
		deadletter.Of(parked, 104),
		amqp091.Publishing{Body: []byte("bare")}, amqp091.Publishing{Body: []byte("bare"), Expiration: "90000000",
			Headers: amqp091.Table{"array": []any{}, "void": nil, "nested": amqp091.Table{"n": int8(1)}}},
		deadletter.New(f.main, 1)) // a copy
	f.fill(50, 10)
}

// What a plan counts in a snapshot is what it counts in the queue, for every plan.
func TestPlansOfSnapshots(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.odd()
	full := f.main + "-full"
	f.Declare(full, amqp091.Table{amqp091.QueueTypeArg: "classic", "x-max-length": int64(3)})
	const edit = `,"filter":{"uuid":["uuid-7"]},"edit":{"body":"{}",` +
		`"set_headers":{"tenant":{"type":"int64","value":"9"}}}`
	for name, plan := range map[string]string{
		"replay":                  `"kind":"replay"`,
		"replay with foreign":     `"kind":"replay","foreign":true`,
		"replay with a limit":     `"kind":"replay","limit":7`,
		"limit beyond":            `"kind":"replay","limit":4000`,
		"canary":                  `"kind":"replay","canary":5,"tolerate":1,"rate":20`,
		"replay to another queue": `"kind":"replay","to":"` + full + `","allow_drop":true`,
		"replay that would drop":  `"kind":"replay","to":"` + full + `"`,
		"move":                    `"kind":"move","to":"` + f.main + `"`,
		"move to no queue":        `"kind":"move","to":"nowhere"`,
		"purge":                   `"kind":"purge"`,
		"purge of a few":          `"kind":"purge","limit":3,"filter":{"error":["declined"]}`,
		"export":                  `"kind":"export"`,
		"park":                    `"kind":"park","note":"x"`,
		"unpark":                  `"kind":"unpark"`,
		"parked, by UUID":         `"kind":"replay","filter":{"uuid":["uuid-104"]}`,
		"parked, included":        `"kind":"replay","include_parked":true`,
		"edit":                    `"kind":"replay"` + edit,
		"by text":                 `"kind":"replay","filter":{"text":["BARE"]}`,
		"by age":                  `"kind":"replay","filter":{"older-than":["1h"]}`,
		"by UUID, and a copy":     `"kind":"purge","filter":{"uuid":["uuid-1","uuid-2"]}`,
		"by many":                 `"kind":"replay","filter":{"min-replays":["1"],"header":["tenant=1"]}`,
		"by a field":              `"kind":"replay","filter":{"json-field":["n=5"]}`,
		"nothing":                 `"kind":"purge","filter":{"reason":["panic"]}`,
	} {
		count := func(more string) map[string]any {
			a := f.send(http.MethodPost, "/api/v1/runs", "application/json", `{"queue":"`+f.dead+`",`+plan+more+`}`)
			require.Equal(t, http.StatusCreated, a.Status, "%s: %s", name, a.Body)
			var r map[string]any
			f.json(a, &r)
			id := fmt.Sprint(r["id"])
			f.await(id, "ready", "failed")
			require.NoError(t, json.Unmarshal([]byte(f.get("/api/v1/runs/"+id).Body), &r))
			f.send(http.MethodDelete, "/api/v1/runs/"+id, "application/json", "")

			delete(r["plan"].(map[string]any), "run") // its ID

			return map[string]any{"state": r["state"], "error": r["error"], "plan": r["plan"]}
		}
		assert.Equal(t, count(""), count(`,"snapshot":"`+f.counts("").Snapshot+`"`), name)
	}
	assert.Equal(t, 58, f.counts("").Seen)
}

// A run of a plan that was counted in a snapshot does what the queue has of it: all that was
// counted and is still there, and nothing else.
func TestRunOfASnapshot(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.odd()
	r := f.plan(`{"kind":"replay","foreign":true,"queue":"` + f.dead + `","snapshot":"` + f.counts("").Snapshot + `"}`)
	f.fill(200, 5)
	f.confirm(r.ID)
	r = f.await(r.ID, "done")
	assert.Equal(t, 55, r.Done, "but for one parked, one that cannot be read, and one whose headers are too large")
	f.Has(f.main, 55)
	f.Has(f.dead, 8)
}

var pageLinks = regexp.MustCompile(`<a rel="(prev|next)" href="([^"]*)">`)

// neighbours are the addresses to which the page of a message leads.
func neighbours(page string) map[string]string {
	links := map[string]string{}
	for _, link := range pageLinks.FindAllStringSubmatch(page, -1) {
		links[link[1]] = "/" + html.UnescapeString(link[2])
	}

	return links
}

// The page of a message leads through the view that it was opened from, also where UUIDs are
// missing, come twice or are too long for an address.
func TestMessagePages(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 3)
	long := strings.Repeat("long", 100)
	twice := func(body string) amqp091.Publishing {
		return deadletter.Message(deadletter.State(f.main, 1), "twice", body)
	}
	f.Publish(f.dead, amqp091.Publishing{Body: []byte("bare")}, twice("the first"), twice("the second"),
		deadletter.Message(deadletter.State(f.main, 9), long, "of a long UUID"))
	id := f.counts("").Snapshot

	bodies := []string{"0", "1", "2", "bare", "the first", "the second", "of a long UUID"}
	path := "/message?uuid=uuid-0&queue=" + f.dead
	for i, body := range bodies {
		a := f.get(path)
		require.Equal(t, http.StatusOK, a.Status, "%s: %s", path, a.Body)
		require.Contains(t, a.Body, fmt.Sprintf("Number %d of 7", i+1))
		require.Contains(t, a.Body, body)
		links := neighbours(a.Body)
		require.Equal(t, i > 0, links["prev"] != "")
		require.Equal(t, i < len(bodies)-1, links["next"] != "")
		if i > 0 {
			require.Contains(t, f.get(links["prev"]).Body, fmt.Sprintf("Number %d of 7", i))
		}
		path = links["next"]
	}
	page := f.get("/message?sort=newest&error=declined&uuid=uuid-1&queue=" + f.dead).Body
	assert.Contains(t, f.get(neighbours(page)["prev"]).Body, "uuid-2", "in the order of the view")
	assert.NotContains(t, neighbours(f.get("/message?reason=panic&uuid=uuid-1&queue="+f.dead).Body), "next",
		"it is not in the view")

	api := "/api/v1/queues/" + f.dead
	var one struct {
		Position int
		Body     string
	}
	for i, body := range bodies[3:] {
		f.json(f.get(fmt.Sprintf("%s/snapshots/%s/dead-letters/%d", api, id, 4+i)), &one)
		assert.Equal(t, body, one.Body)
		assert.Equal(t, body, f.get(fmt.Sprintf("/body?position=%d&snapshot=%s&queue=%s", 4+i, id, f.dead)).Body)
	}
	f.json(f.get(api+"/dead-letters/"+long), &one)
	assert.Equal(t, 7, one.Position)
	f.json(f.get(api+"/dead-letters/twice"), &one)
	assert.Equal(t, 5, one.Position)
	for query, status := range map[string]int{
		"position=0": http.StatusBadRequest, "position=x": http.StatusBadRequest, "": http.StatusBadRequest,
		"position=8": http.StatusNotFound, "uuid=nobody": http.StatusNotFound,
		"uuid=nobody&position=4": http.StatusNotFound,
		"uuid=twice&position=6":  http.StatusOK, "uuid=twice&position=99": http.StatusOK,
		"position=4&snapshot=old": http.StatusNotFound, "uuid=twice&position=6&snapshot=old": http.StatusOK,
		"position=4&colour=red": http.StatusBadRequest, "position=9223372036854775807": http.StatusNotFound,
	} {
		assert.Equal(t, status, f.get("/message?"+query+"&queue="+f.dead).Status, query)
	}
	assert.Contains(t, f.get("/message?uuid=twice&position=6&queue="+f.dead).Body, "the second")
	assert.Equal(t, http.StatusNotFound, f.get(api+"/snapshots/old/dead-letters/4").Status)
	assert.Contains(t, f.get("/message?position=4&snapshot=old&queue="+f.dead).Body, "The queue was read again")
}

func packed(t *testing.T, text io.Reader) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := io.Copy(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())

	return out.Bytes()
}

// zeros are bytes without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Bodies are shown as what they are, packed ones unpacked, and nothing of that takes long or much.
func TestBodies(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	bomb := packed(t, io.LimitReader(zeros{}, 256<<20))
	text := packed(t, strings.NewReader(`{"packed":"yes"}`))
	umlauts := packed(t, strings.NewReader("x"+strings.Repeat("ä", 5<<20)))
	bodies := [][]byte{
		[]byte(`{"a":{"b":1}}`), []byte("plain <b>text</b>"), {0, 1, 2}, text, text[:len(text)-3], bomb,
		packed(t, bytes.NewReader(text)),
		[]byte(strings.Repeat("[", 60_000) + strings.Repeat("]", 60_000)), umlauts, nil,
		append(bytes.Clone(text), text...), {0x1f, 0x8b},
	}
	for i, body := range bodies {
		letter := deadletter.New(f.main, i)
		letter.Body = body
		f.Publish(f.dead, letter)
	}
	page := func(i int, as string) string {
		a := f.get(fmt.Sprintf("/message?uuid=uuid-%d&as=%s&queue=%s", i, as, f.dead))
		require.Equal(t, http.StatusOK, a.Status)
		assert.Less(t, len(a.Body), 600<<10, "body %d", i)

		return html.UnescapeString(a.Body)
	}
	assert.Contains(t, page(0, ""), "{\n  \"a\": {\n    \"b\": 1")
	assert.Contains(t, page(0, "text"), `{"a":{"b":1}}</pre>`)
	assert.Contains(t, page(0, "hex"), "7b 22 61 22")
	assert.Contains(t, page(0, "nonsense"), "{\n  \"a\": {")
	assert.Contains(t, f.get("/message?uuid=uuid-1&queue="+f.dead).Body, "plain &lt;b&gt;text")
	assert.Contains(t, page(2, "text"), "00 01 02", "no text")
	assert.Contains(t, page(3, ""), `"packed": "yes"`)
	assert.Contains(t, page(3, ""), "unpacked 16")
	assert.Contains(t, page(4, ""), "1f 8b", "broken off")
	assert.Contains(t, page(5, ""), "Only the beginning is shown")
	assert.Contains(t, page(6, ""), "1f 8b", "it is unpacked once")
	assert.NotContains(t, page(7, ""), "[\n")
	assert.Contains(t, page(8, ""), "xää", "cut within a character")
	assert.Contains(t, page(9, ""), "The body is empty")
	assert.Contains(t, page(10, ""), "unpacked 32")
	assert.Contains(t, page(11, ""), "1f 8b")
	for i, body := range bodies {
		assert.Equal(t, string(body), f.get(fmt.Sprintf("/body?uuid=uuid-%d&queue=%s", i, f.dead)).Body, "as it is")
	}
}

// What is typed into the search box becomes filters of the view.
func TestSearchBox(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 3)
	for typed, wanted := range map[string]string{
		"card 1":                     "text=card 1",
		"  reason : exhausted ":      "reason=exhausted",
		"REASON:exhausted":           "reason=exhausted",
		"cause:0123456789ab":         "fingerprint=0123456789ab",
		"older-than:2h":              "older-than=2h",
		"error:a:b":                  "error=a:b",
		"header:tenant=1":            "header=tenant=1",
		"json-field:items.0.sku=A:1": "json-field=items.0.sku=A:1",
		"http://example.com/?a=b&c":  "text=http://example.com/?a=b&c",
		"*url.Error: timeout":        "text=*url.Error: timeout",
		"reason:-":                   "reason=-",
		"handler:":                   "",
		"":                           "",
	} {
		a := f.get("/queue?search=" + url.QueryEscape(typed) + "&refresh=old&page=7&sort=newest&queue=" + f.dead)
		require.Equal(t, http.StatusSeeOther, a.Status, "%q: %s", typed, a.Body)
		location, err := url.Parse(a.Header.Get("Location"))
		require.NoError(t, err)
		assert.Equal(t, "queue", location.Path)
		query := location.Query()
		wantedQuery := url.Values{"queue": {f.dead}, "sort": {"newest"}}
		if key, value, ok := strings.Cut(wanted, "="); ok {
			wantedQuery.Set(key, value)
		}
		assert.Equal(t, wantedQuery, query, typed)
		assert.Equal(t, http.StatusOK, f.get("/"+a.Header.Get("Location")).Status, typed)
	}
	for typed, reason := range map[string]string{"reason:bored": "one of exhausted", "older-than:soon": "older-than",
		"error-matches:(": "error-matches", "header:x": "header", "cause:x": "fingerprint"} {
		a := f.get("/queue?search=" + url.QueryEscape(typed) + "&queue=" + f.dead)
		assert.Equal(t, http.StatusBadRequest, a.Status, typed)
		assert.Contains(t, html.UnescapeString(a.Body), reason, typed)
	}
	a := f.get("/queue?reason=exhausted&text=old&search=reason:panic&queue=" + f.dead)
	assert.Contains(t, a.Header.Get("Location"), "reason=exhausted&reason=panic", "of the same kind, one is enough")
	a = f.get("/queue?reason=exhausted&text=old&search=new&queue=" + f.dead)
	assert.Contains(t, a.Header.Get("Location"), "text=new", "there can be one text")
	assert.Equal(t, http.StatusNotFound, f.get("/queue?search=x&queue=other.dlq").Status)

	f.role = dlqweb.RoleMetadata
	for typed, status := range map[string]int{"handler:charge": 303, "": 303, "card": 400, "text:card": 403,
		"error:card": 403, "header:a=b": 403} {
		assert.Equal(t, status, f.get("/queue?search="+url.QueryEscape(typed)+"&queue="+f.dead).Status, typed)
	}
	assert.NotContains(t, f.looked("/queue?queue="+f.dead, nil).Body, "declined")
}

// Causes that are new since a time are marked, and the time is read as people write it.
func TestSince(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	old, recent := deadletter.State(f.main, 0), deadletter.State(f.main, 0)
	old.Error, recent.Error = "an old cause", "a new cause"
	recent.LastFailure = deadletter.Died.AddDate(0, 1, 0)
	f.Publish(f.dead, deadletter.Of(old, 0), deadletter.Of(recent, 1))
	for since, causes := range map[string]int{"2026-01-15 00:00": 1, "2026-01-15T00:00": 1,
		"2026-01-15T00:00:00+01:00": 1, "2025-01-01 00:00": 2, "2026-02-15 00:00": 0, "36500d": 2} {
		page := f.looked("/queue?since="+url.QueryEscape(since)+"&queue="+f.dead, nil)
		require.Equal(t, http.StatusOK, page.Status, since)
		assert.Equal(t, causes, strings.Count(page.Body, `<span class="badge new">`), since)
	}
	for _, since := range []string{"03:02", "23:59", "2h", "1d", " 2h "} {
		path := "/queue?since=" + url.QueryEscape(since) + "&queue=" + f.dead
		assert.Equal(t, http.StatusOK, f.get(path).Status, since)
	}
	for _, since := range []string{"soon", "25:00", "2026-13-01 00:00", "-2h", "2h30"} {
		path := "/queue?since=" + url.QueryEscape(since) + "&queue=" + f.dead
		assert.Equal(t, http.StatusBadRequest, f.get(path).Status, since)
	}
}

// The page of a replay tells how many of its messages have failed again, as soon as somebody reads
// the queue after it.
func TestFateOfAReplay(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 8)
	await.Until(t, func() bool {
		return strings.Contains(f.get("/api/v1/queues").Body, `"messages":8`)
	}, "the console has seen them")
	r := f.plan(`{"kind":"replay","limit":6,"queue":"` + f.dead + `"}`)
	f.confirm(r.ID)
	f.await(r.ID, "done")
	assert.Contains(t, f.get("/run?id="+r.ID).Body, "To see what failed again, read the dead-letter queue.")
	for i, d := range drain.N(t, f.Client, f.main, 6)[:2] {
		state := deadletter.State(f.main, 100)
		state.Replays = 1
		again := deadletter.Of(state, i)
		again.Headers["amqpretry-replay"] = d.Headers["amqpretry-replay"]
		f.Publish(f.dead, again)
	}
	assert.Equal(t, 4, f.counts("").Matched)
	page := f.get("/run?id=" + r.ID).Body
	assert.Contains(t, page, "<dt>Failed again</dt><dd class=\"big\">2</dd>")
	assert.NotContains(t, page, "since.")
	f.fill(20, 3)
	await.Until(t, func() bool {
		return strings.Contains(f.get("/run?id="+r.ID).Body, "has 3 more messages since")
	}, "arrivals")
}

// Somebody else reads the queue again while a plan is on the screen: the run begins if it is still
// about as many messages, and asks once more if not.
func TestPlanAcrossARefresh(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 5)
	f.counts("")
	page := f.get("/plan?kind=purge&queue=" + f.dead).Body
	form := url.Values{"kind": {"purge"}, "queue": {f.dead}}
	for _, name := range []string{"snapshot", "expect"} {
		found := regexp.MustCompile(`name="` + name + `" value="([^"]+)"`).FindStringSubmatch(page)
		require.Len(t, found, 2, name)
		form.Set(name, found[1])
	}
	post := func() string {
		a := f.post("/plan", form)
		require.Equal(t, http.StatusSeeOther, a.Status, a.Body)
		return strings.TrimPrefix(a.Header.Get("Location"), "run?id=")
	}
	f.fill(5, 1)
	f.counts("?refresh=now")
	assert.Equal(t, 6, f.await(post(), "ready").Plan.Matched, "more than was seen")
	drain.N(t, f.Client, f.dead, 1)
	f.counts("?refresh=now")
	assert.Equal(t, 5, f.await(post(), "done").Done, "as many as were seen")
}
