// Errors shows who decides what an error means: the handler's own word, the lists of the policy, and one function over
// all.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() { play.Main(run) }

var errNoSuchCustomer = errors.New("no such customer")

func run(ctx context.Context, uri string, to io.Writer) error {
	out, topic := play.To(to), "errors-"+watermill.NewShortUUID()

	policy := config.Policy{
		Delays:     []time.Duration{100 * time.Millisecond},
		NeverRetry: []config.ErrorMatch{config.Is(errNoSuchCustomer), config.As[*fs.PathError]()},
	}

	// This function is asked about every failure, and outranks the lists.
	decide := func(f retry.Failure) error {
		if errors.Is(f.Err, errNoSuchCustomer) && f.Message.UUID == "new-customer" {
			return retry.Transient(f.Err) // he may not be there yet
		}

		return f.Err // what the policy says
	}

	handler := func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		out.Printf("%s: attempt %d\n", msg.UUID, attempt.Number)

		switch msg.UUID {
		case "customer", "new-customer":
			return fmt.Errorf("billing: %w", errNoSuchCustomer)
		case "template":
			return &fs.PathError{Op: "open", Path: "invoice.tmpl", Err: fs.ErrNotExist}
		case "duplicate":
			return retry.Drop(errors.New("was billed before"))
		case "forged":
			return retry.Permanent(errors.New("the signature is wrong"))
		}

		return errors.New("the bank does not answer")
	}

	options := amqpretry.Options{Policies: config.Policies{Default: policy}, Decide: decide}
	defer play.Remove(uri, options, topic)
	for _, id := range []string{"customer", "new-customer", "template", "duplicate", "forged", "payment"} {
		if err := play.Run(ctx, uri, out, options, play.Handlers{topic: handler},
			play.Message{Topic: topic, ID: id}); err != nil {
			return err
		}
	}

	return nil
}
