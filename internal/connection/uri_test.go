package connection

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each mistake is named, and nothing of the URI is shown.
func TestParseURISaysWhatIsWrong(t *testing.T) {
	for uri, want := range map[string]string{
		"":                                       "it is empty",
		"amqp://user:SECRET@host/\n":             "line break of a file",
		"amqp://user:SEC RET@host/":              "contains white space",
		"amqp://user:SEC\x00RET@host/":           "control character",
		"user:SECRET@host":                       "does not begin with amqp:// or amqps://",
		"http://user:SECRET@host:15672":          "does not begin with amqp:// or amqps://",
		"amqp:user:SECRET@host":                  "does not begin with amqp:// or amqps://",
		"amqp://user:SECRET%@host":               "a % without two hexadecimal digits",
		"amqp://user:SECRET@host/%zz":            "a % without two hexadecimal digits",
		"amqp://user:SECRET/1@host":              "comes before the @",
		"amqp://user:12#SECRET@host":             "comes before the @",
		"amqp://user:SECRET":                     "is not a number from 1 to 65535",
		"amqp://user:SECRET@host:99999":          "is not a number from 1 to 65535",
		"amqp://user:SECRET@host:0":              "is not a number from 1 to 65535",
		"amqp://user:SECRET^@host":               "contains a character that must not be there",
		"amqp://user:SECRET@[::1":                "contains a character that must not be there",
		"amqp://u:SECRET@h/?heartbeat=soon":      "the parameter heartbeat must be whole seconds",
		"amqp://u:SECRET@h/?connection_timeout=": "the parameter connection_timeout must be whole milliseconds",
		"amqp://u:SECRET@h/?channel_max=-1":      "the parameter channel_max must be a number",
	} {
		_, err := ParseURI(uri)
		require.ErrorContains(t, err, "is not an AMQP URI: ", "%q", uri)
		require.ErrorContains(t, err, want, "%q", uri)
		for _, part := range []string{"SEC", "RET", "99999", "soon", "%z", "15672"} {
			assert.NotContains(t, err.Error(), part, "%q", uri)
		}
	}
}

func TestParseURITakesWhatIsRight(t *testing.T) {
	for _, uri := range []string{
		"amqp://", "AMQP://h", "amqp://h", "amqp://h:",
		"amqp://u:p@h:1/a%2Fb?heartbeat=5&connection_timeout=100&channel_max=10", "amqps://[::1]:5671/",
		"amqps://[::1]",
		"amqp://u:p%2F%3F%23%40%3A%25@h", "amqp://u:p@h/shop@home", "amqp://u:p:q@h", "amqp:///vhost",
	} {
		_, err := ParseURI(uri)
		assert.NoError(t, err, uri)
	}
}

// Nothing that is refused by amqp091-go is taken for right, and nothing of what is refused is
// shown.
func FuzzURI(f *testing.F) {
	for _, uri := range []string{"amqp://user:SECRET@host:5672/vhost?heartbeat=1", "amqps://[::1]:5671", "x",
		"amqp://a:b@c/%41", "amqp://SECRET"} {
		f.Add(uri)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		_, err := ParseURI(uri)
		if err == nil {
			return
		}
		if text := err.Error(); !strings.Contains(text, "is not an AMQP URI: ") || strings.Contains(text, "SECRET") {
			t.Errorf("%q: %v", uri, err)
		}
	})
}
