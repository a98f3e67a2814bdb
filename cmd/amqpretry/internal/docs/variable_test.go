package docs

import (
	"os"
	"os/user"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// variable is what differs from run to run, and all that may.
var variable = []struct {
	expression *regexp.Regexp
	with       string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\d{8}T\d{6}Z`), "STAMP"},
	{regexp.MustCompile(`\(\d+[sm] ago\)`), "(AGE ago)"},
	{regexp.MustCompile(`(?m)^(\d+ +order-\d+ +)\d+[sm] `), "${1}AGE "},                // in a list
	{regexp.MustCompile(`(?m)^(\d+ +\w+ +\w+ +)\d+[sm]( +invoice-\d+ )`), "${1}AGE$2"}, // in a list of delays
	{regexp.MustCompile(`(?m)^\d+m\d\ds +bill-`), "AGE bill-"},                         // in a list of what waits
	{regexp.MustCompile(`\b[A-Z2-7]{26}\b`), "ID"},                                     // of a message or a run
	{regexp.MustCompile(`RabbitMQ \d+\.\d+\.\d+`), "RabbitMQ VERSION"},
	{regexp.MustCompile(`(?m)^amqpretry \S+,.*$`), "amqpretry VERSION"},
	// a broker of another version has other checks
	{regexp.MustCompile(`\b\d+ checks found nothing`), "N checks found nothing"},
	{regexp.MustCompile(`sha256 [0-9a-f]{64}`), "SHA256"},
	{regexp.MustCompile(` +`), " "}, // tables are as wide as what varies
	{regexp.MustCompile(`(?m) $`), ""},
}

func normal(output string) string {
	for _, v := range variable {
		output = v.expression.ReplaceAllString(output, v.with)
	}

	return output
}

// presentable is an output without the names of whoever runs the test.
func presentable(output string) string {
	host, _ := os.Hostname()
	name := ""
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	output = regexp.MustCompile(`\btest\d+@[\w.-]+`).ReplaceAllString(output, "rabbit@broker-1")
	output = strings.ReplaceAll(output, name+"@"+host, "eve@desk")
	output = regexp.MustCompile(`(host +|"host": ?")`+regexp.QuoteMeta(host)+`\b`).ReplaceAllString(output,
		"${1}shop-1")
	lines := strings.Split(strings.TrimRight(output, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}

	return strings.Join(lines, "\n")
}

// What varies is the same, and nothing else is.
func TestNormal(t *testing.T) {
	for _, same := range [][2]string{
		{"oldest  2026-11-22T06:35:20Z (20s ago)", "oldest  2027-01-01T00:00:00Z (1m ago)"},
		{"1  order-3  3s   panic", "1  order-3  12s  panic"},
		{"1  reports  1s     3s   invoice-3  -", "1  reports  1s     12s  invoice-3  -"},
		{"RabbitMQ 3.10.8, virtual host /", "RabbitMQ 4.3.6, virtual host /"},
		{"amqpretry (devel), go1.26.8", "amqpretry v1.2.3, revision 0123456, go1.25.0"},
	} {
		assert.Equal(t, normal(same[0]), normal(same[1]))
	}
	for _, different := range [][2]string{
		{"messages  5", "messages  6"},
		{"1  order-3  3s   panic", "1  order-4  3s   panic"},
		{"1  reports  1s     3s   invoice-3  -", "1  reports  2s     3s   invoice-3  -"},
		{"0s     1 of 3   failed", "1s     1 of 3   failed"},
		{"orders.retry.1s", "orders.retry.2s"},
		{"", "# exit 1"},
		{"orders.dlq: 5 messages\n", "orders.dlq: 5 messages\n\n"},
	} {
		assert.NotEqual(t, normal(different[0]), normal(different[1]))
	}
}
