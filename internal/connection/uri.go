package connection

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// ParseURI reads an AMQP URI. The error says what is wrong, but shows nothing of the URI: in one
// that cannot be read, nobody knows what belongs to the password.
func ParseURI(uri string) (amqp091.URI, error) {
	if what := mistake(uri); what != "" {
		return amqp091.URI{}, fmt.Errorf("is not an AMQP URI: %s; wanted amqp://user:password@host:5672/vhost, or "+
			"amqps:// (in the user, the password and the virtual host, characters such as / ? # @ : %% and blanks "+
			"are written as %%2F %%3F %%23 %%40 %%3A %%25 %%20)", what)
	}
	parsed, err := amqp091.ParseURI(uri)
	if err != nil {
		return amqp091.URI{}, errors.New("is not an AMQP URI") // impossible: what amqp091-go refuses is a mistake
	}

	return parsed, nil
}

// mistake is the first thing that is wrong with a URI, without any part of it; empty if there is
// none.
func mistake(uri string) string {
	scheme, rest, found := strings.Cut(uri, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, behind := rest[:end], rest[end:]

	switch scheme = strings.ToLower(scheme); {
	case uri == "":
		return "it is empty"
	case uri != strings.TrimSpace(uri):
		return "it begins or ends with white space, such as the line break of a file"
	case strings.ContainsFunc(uri, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return "it contains white space or a control character"
	case !found || scheme != "amqp" && scheme != "amqps":
		return "it does not begin with amqp:// or amqps://"
	case hasBadEscape(uri):
		return "it contains a % without two hexadecimal digits behind it"
	case !strings.Contains(authority, "@") && strings.Contains(behind, "@"):
		// amqp://u:12/34@host would be read as port 12 of host u, and errors would show it.
		return "a / ? or # comes before the @, so the user or the password ends there"
	case !isPort(authority):
		return "the port after the last : of the host is not a number from 1 to 65535"
	}

	parsed, err := url.Parse(uri)
	if err != nil {
		return "the user, the password or the host contains a character that must not be there"
	}

	return badParameter(parsed.Query())
}

func hasBadEscape(uri string) bool {
	_, err := url.PathUnescape(uri)
	return err != nil
}

// isPort tells whether the port of an authority is one, if it has any.
func isPort(authority string) bool {
	host := authority[strings.LastIndex(authority, "@")+1:]
	colon := strings.LastIndex(host, ":")
	if colon < 0 || strings.Contains(host[colon:], "]") || colon == len(host)-1 {
		return true
	}
	n, err := strconv.ParseUint(host[colon+1:], 10, 16)

	return err == nil && n > 0
}

// badParameter names a parameter with a value that cannot be used.
func badParameter(query url.Values) string {
	for _, parameter := range []struct {
		name, wanted string
		bits         int
	}{
		{"heartbeat", "whole seconds, 0 to 65535", 16},
		{"connection_timeout", "whole milliseconds", 31},
		{"channel_max", "a number, 0 to 65535", 16},
	} {
		if !query.Has(parameter.name) {
			continue
		}
		if _, err := strconv.ParseUint(query.Get(parameter.name), 10, parameter.bits); err != nil {
			return fmt.Sprintf("the parameter %s must be %s", parameter.name, parameter.wanted)
		}
	}

	return ""
}

// timeoutFor is how long one of so many nodes may take until its connection is open: what the URI
// says, if it says so.
func timeoutFor(uri amqp091.URI, nodes int) time.Duration {
	switch {
	case uri.ConnectionTimeout > 0:
		return time.Duration(uri.ConnectionTimeout) * time.Millisecond
	case nodes > 1:
		return nodeTimeout
	default:
		return handshakeTimeout
	}
}
