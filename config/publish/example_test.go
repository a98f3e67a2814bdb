package publish_test

import (
	"errors"
	"fmt"

	"github.com/amqpretry/watermill-retry/config/publish"
)

// What is not known to be stored can be published again.
func ExampleError() {
	unconfirmed := fmt.Errorf("%w: tried for 30s", publish.ErrUnconfirmed)
	var err error = &publish.Error{Topic: "orders", Of: 6, Failed: []publish.Failed{
		{Index: 1, UUID: "2", MayBeStored: true, Err: unconfirmed}, {Index: 4, UUID: "5", Err: unconfirmed},
	}}
	fmt.Println(err)

	var failed *publish.Error
	if errors.As(err, &failed) {
		for _, f := range failed.Failed {
			fmt.Println("again:", f.UUID, "may be stored:", f.MayBeStored)
		}
	}
	// Output:
	// cannot publish 2 of 6 messages to topic "orders": message "2" (may be stored): the broker has not confirmed it: tried for 30s; message "5" (not stored): the broker has not confirmed it: tried for 30s
	// again: 2 may be stored: true
	// again: 5 may be stored: false
}
