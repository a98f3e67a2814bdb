package delay

import (
	"fmt"
	"time"
)

// MetadataError says that the delay in a message's metadata cannot be read. No message of the call
// was published.
type MetadataError struct {
	// Topic and UUID tell the message.
	Topic, UUID string
	// Key of the metadata, and its value.
	Key, Value string
	// Wanted is what the value must be.
	Wanted string
	Err    error
}

func (e *MetadataError) Error() string {
	return fmt.Sprintf("cannot publish message %q to topic %q: its metadata %s is %q; it must be %s: see "+
		"Watermill's components/delay", e.UUID, e.Topic, e.Key, e.Value, e.Wanted)
}

func (e *MetadataError) Unwrap() error { return e.Err }

// TooLongError says that a message is to be delayed for longer than the ladder can. No message of
// the call was published.
type TooLongError struct {
	// Topic and UUID tell the message.
	Topic, UUID string
	// Delay of the message, and the longest of the ladder.
	Delay, Longest time.Duration
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("cannot publish message %q to topic %q: its delay of %s is too long; it must be at most %s, or "+
		"Options.Ladder must have a larger Unit or more Levels", e.UUID, e.Topic, e.Delay, e.Longest)
}
