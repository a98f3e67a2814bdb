package delay_test

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wmdelay "github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/delay"
)

// A service that reminds its users. It does not connect before the first message with a delay.
func Example() {
	logger := watermill.NopLogger{}
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
		amqpretry.Options{Logger: logger})
	if err != nil {
		panic(err)
	}
	defer func() { _ = retrier.Close() }() // closes the publisher as well

	// For messages without a delay: here a stand-in for one of retrier.NewPublisher().
	stock := gochannel.NewGoChannel(gochannel.Config{}, logger)
	publisher, err := retrier.NewDelayPublisher(stock, delay.Options{})
	if err != nil {
		panic(err)
	}

	err = publisher.Publish("news", message.NewMessage("1", []byte("for all"))) // without a delay
	fmt.Println(err)

	// msg := message.NewMessage("2", []byte("Your trial ends tomorrow"))
	// wmdelay.Message(msg, wmdelay.For(29*24*time.Hour))
	// err = publisher.Publish("reminders", msg)

	// Output: <nil>
}

func ExampleDue() {
	msg := message.NewMessage("1", nil)
	wmdelay.Message(msg, wmdelay.Until(time.Date(2026, 12, 24, 18, 0, 0, 0, time.UTC)))
	due, delayed, err := delay.Due(msg.Metadata, time.Date(2026, 12, 25, 0, 0, 0, 0, time.UTC))
	fmt.Println(due.Format(time.DateTime), delayed, err)

	_, delayed, _ = delay.Due(message.Metadata{}, time.Now())
	fmt.Println(delayed)
	// Output:
	// 2026-12-24 18:00:00 true <nil>
	// false
}

// Units of 100ms, for delays up to 27 hours: retries with exact delays use the same ladder.
func ExampleOptions() {
	options := delay.Options{Ladder: config.RetryLadder(), PublishTimeout: 5 * time.Second}
	fmt.Println(options.Validate(), options.Ladder.Longest(), options.Ladder.RoundUp(1234*time.Millisecond))

	options.Ladder.Radix = 100
	fmt.Println(options.Validate())
	// Output:
	// <nil> 27h46m39.9s 1.3s
	// Options.Ladder.Radix: out of bounds: must be 2..16, or left out, got 100
}
