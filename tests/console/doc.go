// Package console tests the command amqpretry serve as a process: it is looked at, killed and
// undone, and every message is counted.
package console
