package dlqcmd

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// What is deleted in one virtual host stays in the others, where there is a queue of the same name.
func TestPurgeInAnotherVirtualHost_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Shared(t)
	const name = "teams/staging 2"
	broker.Ctl("add_vhost", name)
	broker.Ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
	usual := onBroker(t, broker.URI)
	other := placeFor(t, strings.TrimSuffix(broker.URI, "/")+"/"+url.PathEscape(name), usual.main)
	usual.management = broker.ManagementURL
	usual.fill(usual.main, 0, 3)
	other.fill(usual.main, 0, 3)
	usual.Has(usual.main+suffix, 3)
	other.Has(usual.main+suffix, 3)

	out, _ := usual.ok("purge", usual.main, "--vhost", name, "--all", "--yes", "--no-undo")
	assert.Contains(t, out, "3 of 3 matching messages purged")
	usual.Has(usual.main+suffix, 3)
	other.Has(usual.main+suffix, 0)

	out, _ = other.ok("purge", usual.main, "--vhost", "/", "--all", "--yes", "--no-undo")
	assert.Contains(t, out, "3 of 3 matching messages purged")
	usual.Has(usual.main+suffix, 0)

	code, _, errs := usual.run(nil, "purge", usual.main, "--vhost", "nowhere", "--all", "--yes", "--no-undo")
	assert.Equal(t, cli.ExitFailed, code)
	assert.NotEmpty(t, errs)
}
