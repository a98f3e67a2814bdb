package sqlstore

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// dialect is what differs between servers. A ? in its texts is a parameter.
type dialect struct {
	quote      string
	parameters func(text string) string // replaces each ? by what the server has for it

	now, epoch string // the server's clock, and 1970
	step       string // an interval of ? microseconds
	micros     string // format: the microseconds from one time to another

	skip string // end of an INSERT of a message: does nothing where the row is there
	keep string // end of an INSERT of a name: locks the row that is there
	look string // end of a SELECT in a transaction: sees what was committed since that began
	lock string // format: the locked row of a name in a table; the clock is read after that
	// stale says that a statement has the time of its beginning, also when it had to wait for a
	// lock.
	stale bool

	setWait   func(time.Duration) string // how long statements wait for locks
	resetWait string                     // as it was before setWait
	// waitStays says that it must be reset also when the transaction has failed.
	waitStays bool

	// doomed is a statement that locks the rows of a table that a condition selects, and returns
	// columns of them. It deletes them as well, or else removal does so.
	doomed  func(table, columns, condition string) string
	removal func(table string, columns []string, rows int) string
	batch   int // rows that a transaction of Cleanup deletes: few enough to take milliseconds

	// alone are statements before the schema, so that instances make a table one after the other.
	alone  func(table string) []string
	schema func(table, index, values string) []string

	code        func(error) string // what the server calls an error, or ""
	conflicts   []string           // the transaction met another one, and can be repeated
	lockTimeout string
	duplicate   string   // an INSERT of a row that is there; "" where skip prevents it
	creating    []string // another instance makes the tables at the same time
}

// quoted returns the name of a table as statements have it.
func (d dialect) quoted(name string) string {
	return d.quote + strings.ReplaceAll(name, ".", d.quote+"."+d.quote) + d.quote
}

// is tells whether an error of the server has one of the codes.
func (d dialect) is(err error, codes ...string) bool {
	code := d.code(err)

	return code != "" && slices.Contains(codes, code)
}

// statements are the texts of all statements, made once.
type statements struct {
	claim, look, lookTx, take, renew, commit, release string
	setWait                                           string
	lock, place, change                               string
	clock, clean, cleanValues                         string
}

// Parameters have the same order in all dialects.
func newStatements(c Config, d dialect) statements {
	table, values := d.quoted(c.Table), d.quoted(c.ValuesTable)
	const message = ` WHERE handler = ? AND message_key = ?`
	const mine = message + ` AND owner = ?`
	until := d.now + ` + ` + d.step
	rest := func(column string) string { return fmt.Sprintf(d.micros, d.now, column) }
	since := func(time string) string { return fmt.Sprintf(d.micros, d.epoch, time) }
	at := d.epoch + ` + ` + d.step
	look := `SELECT done, ` + rest("stamp") + ` FROM ` + table + message
	text := d.parameters

	return statements{
		claim: text(`INSERT INTO ` + table + ` (handler, message_key, owner, done, stamp)
			VALUES (?, ?, ?, ?, ` + until + `)` + d.skip),
		look:   text(look),
		lookTx: text(look + d.look),
		// A clock that was read before the statement had to wait for the row is good enough here: a
		// lease that was renewed meanwhile has not run out.
		take: text(`UPDATE ` + table + ` SET owner = ?, done = ?, stamp = ` + until + message +
			` AND NOT done AND stamp <= ` + d.now),
		renew:   text(`UPDATE ` + table + ` SET stamp = ` + until + mine + ` AND NOT done`),
		commit:  text(`UPDATE ` + table + ` SET done = true, stamp = ` + d.now + mine),
		release: text(`DELETE FROM ` + table + mine + ` AND NOT done`),

		setWait: d.setWait(c.LockWait),

		lock: text(`SELECT ` + since(d.now) + `, ` + rest("expires") + `, value FROM ` + fmt.Sprintf(d.lock, values)),
		place: text(`INSERT INTO ` + values + ` (name, value, expires) VALUES (?, NULL, ` + d.now + `)` +
			d.keep),
		change: text(`UPDATE ` + values + ` SET value = ?, expires = ` + until + ` WHERE name = ?`),

		clock: `SELECT ` + since(d.now),
		clean: text(d.doomed(table, `handler, message_key, `+since("stamp"),
			`stamp >= `+at+` AND stamp < `+at+` ORDER BY stamp LIMIT ?`)),
		cleanValues: text(d.doomed(values, `name, NULL, 0`, `expires < `+d.now+` LIMIT ?`)),
	}
}
