package sqlstore

import (
	"cmp"
	"errors"
	"regexp"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/middleware/protect/store"
)

// The defaults of a [Config].
const (
	defaultTable       = "amqpretry_inbox"
	defaultValuesTable = "amqpretry_values"
	defaultRetention   = 7 * 24 * time.Hour
	defaultLockWait    = time.Second
)

// Config names the tables and limits of a [Store]. The zero value is valid.
type Config struct {
	// Table holds the claims and the handled messages. It may have a schema (MySQL: a database):
	// "retry.inbox". Defaults to amqpretry_inbox.
	Table string
	// ValuesTable holds the state of rate limits and circuit breakers.
	// Defaults to amqpretry_values.
	ValuesTable string
	// Retention is how long Cleanup keeps a handled message. A duplicate that comes later is
	// handled again. It must be longer than a message can be on its way: the longest retry policy,
	// plus the longest time that a publisher repeats a publish. 7 days by default: it covers a
	// queue that nobody could drain over a weekend.
	Retention time.Duration
	// LockWait is how long BeginTx waits for another transaction with the same message. MySQL
	// rounds it up to whole seconds. 1s by default.
	LockWait time.Duration
}

// identifier is a name with at most one schema in front. PostgreSQL cuts names at 63 bytes, and
// indexes have a suffix.
var identifier = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,49}\.)?[A-Za-z_][A-Za-z0-9_]{0,49}$`)

// Validate returns every error of the config, as joined [*config.FieldError]s.
func (c Config) Validate() error {
	var errs []error
	add := func(field, problem, wanted, found string) {
		errs = append(errs, &config.FieldError{Path: "Config." + field, Problem: problem, Wanted: wanted, Found: found})
	}
	name := func(field, found string) {
		if found != "" && !identifier.MatchString(found) {
			add(field, "not a table name",
				"letters, digits and _, at most 50, after at most one schema (MySQL: database)",
				found)
		}
	}
	name("Table", c.Table)
	name("ValuesTable", c.ValuesTable)
	if cmp.Or(c.Table, defaultTable) == cmp.Or(c.ValuesTable, defaultValuesTable) {
		add("ValuesTable", "the same as Table", "another table", cmp.Or(c.ValuesTable, defaultValuesTable))
	}
	limit := func(field string, d time.Duration) {
		if d != 0 && d < store.MinLease {
			add(field, "too short", "at least "+store.MinLease.String()+", or 0 for the default", d.String())
		}
	}
	limit("Retention", c.Retention)
	limit("LockWait", c.LockWait)

	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	c.Table = cmp.Or(c.Table, defaultTable)
	c.ValuesTable = cmp.Or(c.ValuesTable, defaultValuesTable)
	c.Retention = cmp.Or(c.Retention, defaultRetention)
	c.LockWait = cmp.Or(c.LockWait, defaultLockWait)

	return c
}
