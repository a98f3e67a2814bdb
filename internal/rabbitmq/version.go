// Package rabbitmq knows the words and values of a server, and what depends on its version. It is a leaf: functions over
// values. Nothing else compares versions: each difference is a function here, whose comment has its upstream cause.
package rabbitmq

import (
	"strconv"
	"strings"
)

// AtLeast reports whether a version such as 4.0.5 or 4.4.0-rc.1 is major.minor or later. It is false for one that
// cannot be read. It is for this package and for tests.
func AtLeast(version string, major, minor int) bool {
	a, b, ok := parse(version)
	return ok && (a > major || a == major && b >= minor)
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
