package delay

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Due returns when a message is due that is published now, by the metadata that Watermill's
// components/delay writes, and false if it has none. Its errors are *[MetadataError]s without a
// topic and a UUID.
//
// Watermill writes the time until which the message is delayed without the fraction of its second,
// and the duration in full. Due takes the fraction from the duration: it is now plus the duration,
// but neither before the second that is written nor after it. So a message that is published again,
// or late, is due at the time that was written. A message with one of both values is due by that.
func Due(metadata message.Metadata, now time.Time) (due time.Time, delayed bool, err error) {
	writtenUntil, writtenFor := metadata.Get(delay.DelayedUntilKey), metadata.Get(delay.DelayedForKey)
	if writtenUntil == "" && writtenFor == "" {
		return time.Time{}, false, nil
	}

	var first, last time.Time
	if writtenUntil != "" {
		if first, err = time.Parse(time.RFC3339, writtenUntil); err != nil {
			return time.Time{}, false, &MetadataError{Key: delay.DelayedUntilKey, Value: writtenUntil,
				Wanted: "a time such as " + exampleTime, Err: err}
		}
		if writtenFor == "" {
			return first, true, nil
		}
		last = first.Truncate(time.Second).Add(time.Second - 1)
	}

	duration, err := time.ParseDuration(writtenFor)
	if err != nil {
		return time.Time{}, false, &MetadataError{Key: delay.DelayedForKey, Value: writtenFor,
			Wanted: "a duration such as 1m30s", Err: err}
	}
	due = now.Add(duration)
	switch {
	case writtenUntil == "":
		return due, true, nil
	case due.Before(first):
		return first, true, nil
	case due.After(last):
		return last, true, nil
	default:
		return due, true, nil
	}
}

const exampleTime = "2026-01-02T15:04:05Z"
