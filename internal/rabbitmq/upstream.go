// Package rabbitmq knows the words and values of a server, and what depends on its version. It is a
// leaf: functions over values. Nothing else compares versions: each difference is a function here,
// whose comment has its upstream cause.
package rabbitmq

import (
	"strconv"
	"strings"
)

// AtLeast reports whether a version such as 4.0.5 or 4.4.0-rc.1 is major.minor or later. It is
// false for one that cannot be read. It is for this package and for tests.
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

// IsSupported reports whether a server is one that this library works with.
//
// Upstream: no at-least-once dead-lettering; release notes of RabbitMQ 3.10; RabbitMQ before 3.10;
// TestChecksOfVersions; remove when nobody runs RabbitMQ 3.9.
func IsSupported(version string) bool { return AtLeast(version, 3, 10) }

// HasAllFlags reports whether the feature flags for quorum queues and for at-least-once
// dead-lettering are always on.
//
// Upstream: feature flags that quorum queues need can be off; release notes of RabbitMQ 4.0;
// RabbitMQ 3.10 to 3.13; TestChecksOfVersions; remove when RabbitMQ 3.13 is no longer supported.
func HasAllFlags(version string) bool { return AtLeast(version, 4, 0) }

// CountsFailuresOnly reports whether a quorum queue leaves nacks out of the count that its delivery
// limit is about. Rejects, closed channels and lost connections count everywhere.
//
// Upstream: a nack counts as a failed delivery; rabbitmq/rabbitmq-server#15387; RabbitMQ 3.10 to
// 4.2; TestP4_ShutdownDoesNotCountAndRestartForgetsNothing, TestBrowsingWherePoliciesAreUnseen,
// TestChecksOfVersions; remove when RabbitMQ 4.2 is no longer supported.
func CountsFailuresOnly(version string) bool { return AtLeast(version, 4, 3) }

// CountsRejections reports whether the x-delivery-count of a message counts its rejections, also
// after it was dead-lettered and has come back.
//
// Upstream: rejections of a dead-letter cycle count as deliveries, and the count travels along; no
// issue known, measured; RabbitMQ 4.0 to 4.2; TestDeaths, TestStrategy_CycleRejectionsAreNoCrashes;
// remove when RabbitMQ 4.2 is no longer supported.
func CountsRejections(version string) bool {
	return AtLeast(version, 4, 0) && !CountsFailuresOnly(version)
}

// CountsGivenBack reports whether the count of a message rises by what a consumer gives back while
// it is open, so far that the margin below a crash limit is gone. It is true for a version that
// cannot be read.
//
// Upstream: deliveries that an open consumer gives back are counted often; no issue known,
// measured; RabbitMQ 3.10; TestSuspectsFrom, TestKillersNeighboursAreNotCharged; remove when
// RabbitMQ 3.13 is no longer supported.
func CountsGivenBack(version string) bool { return !AtLeast(version, 4, 0) }

// DelaysRetries reports whether quorum queues have a delayed retry. Older servers take its
// arguments and ignore them.
//
// Upstream: no delayed retry, and its arguments are ignored without an error;
// rabbitmq/rabbitmq-website#2508; RabbitMQ 3.10 to 4.2; TestCheckNative,
// TestStrategy_NativeNeedsItsVersion, TestStrategyCheck; remove when RabbitMQ 4.2 is no longer
// supported.
func DelaysRetries(version string) bool { return AtLeast(version, 4, 3) }

// RefusesOn reports whether a channel that has met a full quorum queue may go on to refuse when the
// queue has room again, because its length limit was removed.
//
// Upstream: a channel keeps refusing for a queue that was full; rabbitmq/rabbitmq-server#2407 (how
// it should work); RabbitMQ 3.10; TestQueueForwarder_Retire, TestRounds_FullQueue,
// TestChecksOfExactDelays; remove when RabbitMQ 3.13 is no longer supported.
func RefusesOn(version string) bool { return AtLeast(version, 1, 0) && !AtLeast(version, 4, 0) }

// HoldsBack reports whether a server may hold messages back until their x-opt-delivery-time, as
// RabbitMQ does from 4.4 on. AMQP does not count these messages: for a queue that is full of them,
// a passive declare says 0. It is true as well for a version that tells nothing, such as the 0.0.0
// of a build from source.
//
// Upstream: messages that wait for their x-opt-delivery-time are not counted;
// rabbitmq/rabbitmq-server#17288 (about the feature), measured; RabbitMQ 4.4 (development builds);
// TestHoldsBack, TestHiddenMessages; remove when a passive declaration counts them.
func HoldsBack(version string) bool {
	major, _, ok := parse(version)
	return !ok || major == 0 || AtLeast(version, 4, 4)
}
