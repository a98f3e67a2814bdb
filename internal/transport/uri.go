package transport

import (
	"errors"
	"strings"

	"github.com/rabbitmq/amqp091-go"
)

var errURI = errors.New("is not an AMQP URI: wanted amqp://user:password@host:5672/vhost, or amqps:// (in the user, the password and the " +
	"virtual host, characters such as / ? # @ : % and blanks are written as %2F %3F %23 %40 %3A %25 %20)")

// ParseURI reads an AMQP URI. Nothing of it is in the error: in a URI that cannot be read, nobody knows what belongs to the password.
func ParseURI(uri string) (amqp091.URI, error) {
	parsed, err := amqp091.ParseURI(uri)
	if err != nil || splitsPassword(uri) {
		return amqp091.URI{}, errURI
	}

	return parsed, nil
}

// splitsPassword tells whether the user and the password end behind a character that begins another part: amqp://u:12/34@host is
// read as port 12 of host u, and errors would show it.
func splitsPassword(uri string) bool {
	_, rest, _ := strings.Cut(uri, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		return false
	}

	return !strings.Contains(rest[:end], "@") && strings.Contains(rest[end:], "@")
}
