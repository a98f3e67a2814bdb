package cli

import (
	"net/url"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// namesVHost tells whether an address has a virtual host of its own: amqp://host and amqp://host/
// have none.
func namesVHost(uri string) bool {
	parsed, err := url.Parse(uri)

	return err == nil && len(parsed.Path) > 1
}

// withVHost is the address with another virtual host, whose name may have any characters.
func withVHost(uri, vhost string) (string, error) {
	parsed, err := url.Parse(uri)
	if err != nil { // which shows the address
		return "", Usage("the address of the broker cannot be read")
	}
	parsed.Path, parsed.RawPath = "/"+vhost, "/"+url.PathEscape(vhost)
	changed := parsed.String()
	if got, err := connection.ParseURI(changed); err != nil || got.Vhost != vhost {
		return "", Usage("--vhost: %q cannot be put into the address of the broker: name it there", vhost)
	}

	return changed, nil
}
