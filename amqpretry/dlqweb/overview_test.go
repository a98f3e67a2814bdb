package dlqweb_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

var causes = regexp.MustCompile(`<b>(100 %)</b> ([^<]*)</a>`)

// A person who opens the overview has the queues read. A page that stays open does not, with its
// script and without.
func TestOpenTabReadsNothing(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.fill(0, 3)
	await.Until(t, func() bool { return strings.Contains(f.live("/").Body, "<strong>3</strong>") })
	await.Stays(t, 3*time.Second, func() bool {
		return strings.Contains(f.live("/").Body, "not read yet") &&
			strings.Contains(f.get("/?live=1").Body, "not read yet")
	}, "nothing is read")

	f.get("/")
	var page string
	await.Until(t, func() bool {
		page = f.live("/").Body
		return causes.MatchString(page)
	}, "the top cause is shown")
	assert.Contains(t, page, "card &lt;n&gt; declined")
	assert.Contains(t, page, "queue?fingerprint=")
	f.role = dlqweb.RoleMetadata
	assert.Equal(t, "*cards.DeclinedError", causes.FindStringSubmatch(f.live("/").Body)[2], "the text needs a role")
}

// What only the management API knows is unknown without it, and not 0.
func TestOverviewWithoutManagement(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	page := f.get("/?name=web").Body
	assert.Contains(t, page, `title="Only the management API knows how many messages wait.">?<span`)
	assert.Contains(t, page, "the console shows all queues of the virtual host")
	assert.Contains(t, page, `content="5; url=./?live=1&amp;name=web"`)
	assert.Contains(t, f.get("/?name=nobody").Body, "No queue has this in its name")
}
