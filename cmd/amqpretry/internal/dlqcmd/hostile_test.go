package dlqcmd

import (
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
)

// colors are the sequences of the command's own styles.
var colors = regexp.MustCompile("\x1b\\[(0|1|2|22|33|31;1|0;22|0;22;0)m")

// Whoever may publish can write anything into a message, and the names of queues come from others
// as well.
func TestNothingOfAMessageReachesTheTerminal(t *testing.T) {
	const evil = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202e\r\n\x00\xff\b|tab\t|"
	l := dlq.DeadLetter{Position: 1, UUID: evil, CameBy: dlq.Route{Exchange: evil, RoutingKey: evil}, Unreadable: evil}
	l.Reason, l.Error, l.ErrorType, l.Queue, l.Topic, l.Handler, l.Host = evil, evil, evil, evil, evil, evil, evil
	l.Exchange, l.RoutingKey, l.Expiration, l.UserID, l.Removed = evil, evil, evil, evil, evil
	text := evil
	l.Edits = []dlq.Edit{{By: evil, SHA256: evil, Body: evil, Headers: map[string]*string{evil: &text},
		Properties: map[string]string{evil: evil}}}
	l.Message = amqp091.Publishing{
		ContentType: evil, ContentEncoding: evil, CorrelationId: evil, ReplyTo: evil, Expiration: evil, MessageId: evil,
		Type: evil, UserId: evil, AppId: evil,
		Headers: amqp091.Table{evil: evil, "t": amqp091.Table{evil: evil}, "a": []any{evil, []byte(evil)},
			"b": []byte(evil)}, Body: []byte(evil),
	}
	for _, args := range [][]string{
		{"list", "q"}, {"list", "q", "--limit", "0"}, {"stat", "q"}, {"show", "q", evil},
		{"show", "q", "1"}, {"show", "q", "1", "--body"},
		{"show", "q", "1", "--json"}, {"list", "q", "--json"}, {"stat", "q", "--json"},
		{"list", evil}, {"stat", evil}, {"show", evil, "nobody" + evil}, {"replay", evil},
		{"replay", evil, "--to", evil}, {"purge", evil, "--all"}, {"move", evil, "--to", "x" + evil},
		{"replay", evil, "--uuid", evil, "--set-header", "a=b"}, {"list", "q", "--reason", evil},
		{"list", "q", "--header", evil}, {"show", evil},
	} {
		f := orders(l)
		_, out, errs := f.run(t, terminal("n\n"), append(args, "--color", "always")...)
		for _, r := range colors.ReplaceAllString(strings.ReplaceAll(out+errs, "\n", ""), "") {
			require.True(t, unicode.IsGraphic(r), "%q of %q in\n%q", r, args, out+errs)
		}
		assert.NotContains(t, out+errs, "\xff")
	}
}
