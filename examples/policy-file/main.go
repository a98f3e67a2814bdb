// Policy-file reads its policies from a file, in which the environment overrides single fields:
//
//	AMQPRETRY__TOPICS__ORDERS__DELAYS=300ms scripts/broker run --private go run ./examples/policy-file
package main

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config/policyfile"
	"github.com/amqpretry/watermill-retry/examples/internal/play"
	"github.com/amqpretry/watermill-retry/retry"
)

func main() {
	play.Main(func(ctx context.Context, uri string, to io.Writer) error {
		return run(ctx, uri, to, "examples/policy-file/retry.yaml")
	})
}

func run(ctx context.Context, uri string, to io.Writer, file string) error {
	// Everything that is wrong with the file or the environment is in this one error, with lines and variables.
	policies, err := policyfile.Load(file)
	if err != nil {
		return err
	}

	out, id := play.To(to), watermill.NewShortUUID()
	for _, service := range []string{"orders.", "mails.", "orders.audit"} {
		out.Printf("%s: %v\n", service, policies.For(service).Schedule())
	}

	handler := func(msg *message.Message) error {
		attempt, _ := retry.AttemptFromContext(msg.Context())
		out.Printf("%s: attempt %d\n", msg.UUID, attempt.Number)

		if msg.UUID == "template" {
			return &fs.PathError{Op: "open", Path: "invoice.tmpl", Err: fs.ErrNotExist}
		}

		return errors.New("the bank does not answer")
	}

	orders, mails, audit := "orders."+id, "mails."+id, id+".audit"
	options := amqpretry.Options{Policies: policies}
	defer play.Remove(uri, options, orders, mails, audit)
	for _, message := range []play.Message{
		{Topic: orders, ID: "order"}, {Topic: orders, ID: "template"}, {Topic: mails, ID: "mail"},
		{Topic: audit, ID: "audit"},
	} {
		handlers := play.Handlers{message.Topic: handler}
		if err := play.Run(ctx, uri, out, options, handlers, message); err != nil {
			return err
		}
	}

	return nil
}
