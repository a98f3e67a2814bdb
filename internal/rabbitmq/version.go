// Package rabbitmq knows the words and values of a server, and what depends on its version. It is a leaf: functions
// over values.
package rabbitmq

import (
	"strconv"
	"strings"
)

// AtLeast reports whether a version such as 4.0.5 or 4.4.0-rc.1 is major.minor or later. It is false for one that
// cannot be read.
func AtLeast(version string, major, minor int) bool {
	a, b, ok := parse(version)
	return ok && (a > major || a == major && b >= minor)
}

// HoldsBack reports whether a server may hold messages back until their x-opt-delivery-time, as RabbitMQ does from 4.4
// on. AMQP does not count these messages: for a queue that is full of them, a passive declare says 0. It is true as
// well for a version that tells nothing, such as the 0.0.0 of a build from source.
func HoldsBack(version string) bool {
	major, _, ok := parse(version)
	return !ok || major == 0 || AtLeast(version, 4, 4)
}

func parse(version string) (major, minor int, ok bool) {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	digits, _, _ := strings.Cut(parts[1], "-") // 4.4-dev
	digits, _, _ = strings.Cut(digits, "+")
	major, errMajor := strconv.Atoi(parts[0])
	minor, errMinor := strconv.Atoi(digits)

	return major, minor, errMajor == nil && errMinor == nil
}
