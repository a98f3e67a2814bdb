package sqlstore

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

var mysql = dialect{
	quote:      "`",
	parameters: func(text string) string { return text },

	now:    `UTC_TIMESTAMP(6)`,
	epoch:  `TIMESTAMP'1970-01-01 00:00:00'`,
	step:   `INTERVAL ? MICROSECOND`,
	micros: `TIMESTAMPDIFF(MICROSECOND, %s, %s)`,

	keep: ` ON DUPLICATE KEY UPDATE name = name`,
	// A transaction with REPEATABLE READ does not see what was committed after it began, unless it
	// locks it. MariaDB does not know FOR SHARE.
	look:  ` LOCK IN SHARE MODE`,
	lock:  `%s WHERE name = ? FOR UPDATE`,
	stale: true,

	// The setting is one of the connection, which outlives the transaction.
	setWait: func(d time.Duration) string {
		return fmt.Sprintf(`SET @amqpretry_lock_wait = @@SESSION.innodb_lock_wait_timeout,
			SESSION innodb_lock_wait_timeout = %d`, int(math.Ceil(d.Seconds())))
	},
	resetWait: `SET SESSION innodb_lock_wait_timeout = @amqpretry_lock_wait`,
	waitStays: true,

	doomed: func(table, columns, condition string) string {
		return `SELECT ` + columns + ` FROM ` + table + ` WHERE ` + condition + ` FOR UPDATE SKIP LOCKED`
	},
	removal: mysqlRemoval,
	batch:   200,

	alone:  func(string) []string { return nil },
	schema: mysqlSchema,

	code:        errorNumber,
	conflicts:   []string{"1020", "1213"}, // record changed (MariaDB with innodb_snapshot_isolation), deadlock
	lockTimeout: "1205",
	duplicate:   "1062",
}

func mysqlSchema(table, _, values string) []string {
	return []string{
		`CREATE TABLE IF NOT EXISTS ` + table + ` (
	handler     VARBINARY(255) NOT NULL,
	message_key VARBINARY(255) NOT NULL,
	owner       VARBINARY(32)  NOT NULL COMMENT 'token of the claim; empty when it was part of a transaction',
	done        BOOLEAN        NOT NULL COMMENT '0: claimed; 1: handled',
	stamp       DATETIME(6)    NOT NULL COMMENT 'UTC. claimed: when the lease runs out; handled: when it was handled',
	PRIMARY KEY (handler, message_key),
	INDEX by_stamp (stamp)
) ENGINE=InnoDB`,
		`CREATE TABLE IF NOT EXISTS ` + values + ` (
	name    VARBINARY(255) NOT NULL PRIMARY KEY,
	value   MEDIUMBLOB,
	expires DATETIME(6)    NOT NULL COMMENT 'UTC'
) ENGINE=InnoDB`,
	}
}

// mysqlRemoval deletes rows by their primary keys, which are a derived table, one SELECT for each.
// With a list of conditions instead the server may read all rows of a handler, and wait for those
// that others have locked.
func mysqlRemoval(table string, columns []string, rows int) string {
	var on, key []string
	for _, column := range columns {
		on = append(on, "old."+column+" = gone."+column)
		key = append(key, "CAST(? AS BINARY) AS "+column)
	}
	one := "SELECT " + strings.Join(key, ", ")

	return "DELETE old FROM (" + one + strings.Repeat(" UNION ALL "+one, rows-1) + ") AS gone STRAIGHT_JOIN " + table +
		" AS old FORCE INDEX (PRIMARY) ON " + strings.Join(on, " AND ")
}

// errorNumber returns the number of an error of the server. The driver's type MySQLError has it in
// the field Number, and in no method. This package imports no driver.
func errorNumber(err error) string {
	if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct && v.Type().Name() == "MySQLError" {
		if number := v.FieldByName("Number"); number.CanUint() {
			return strconv.FormatUint(number.Uint(), 10)
		}
	}
	switch wrapped := err.(type) { //nolint:errorlint // it looks through the wrapped ones itself
	case interface{ Unwrap() error }:
		return errorNumber(wrapped.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range wrapped.Unwrap() {
			if number := errorNumber(err); number != "" {
				return number
			}
		}
	}

	return ""
}
