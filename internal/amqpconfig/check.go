package amqpconfig

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// Problems are what is wrong with options, each with the path of its field.
type Problems []error

// Add notes a problem.
func (p *Problems) Add(path, problem, wanted, found string) {
	*p = append(*p, &config.FieldError{Path: path, Problem: problem, Wanted: wanted, Found: found})
}

// Addresses checks those of further nodes.
func (p *Problems) Addresses(path string, addresses []string) {
	for i, address := range addresses {
		if err := connection.CheckAddress(address); err != nil {
			p.Add(fmt.Sprintf("%s[%d]", path, i), err.Error(), "host:port or host, such as rabbit-2:5672: user, "+
				"virtual host and TLS are those of the URI", shown(address))
		}
	}
}

// shown is an address that cannot be read, but for what may be a password.
func shown(address string) string {
	if i := strings.LastIndex(address, "@"); i >= 0 {
		return strconv.Quote("…" + address[i:])
	}

	return strconv.Quote(address)
}

// Prefetch checks a number that the broker has 16 bits for.
func (p *Problems) Prefetch(path string, n int, byDefault string) {
	if n < 0 || n > rabbitmq.MaxPrefetch {
		p.Add(path, "out of bounds", "1..65535, or 0 for "+byDefault, strconv.Itoa(n))
	}
}

// Duration checks one that may not be negative.
func (p *Problems) Duration(path string, d time.Duration) {
	if d < 0 {
		p.Add(path, "negative", "more than 0", d.String())
	}
}
