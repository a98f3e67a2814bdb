// Console mounts the web console for dead letters in a service. Look at
//
//   - mount, which says who may do what, where runs are kept, and where actions are written,
//   - replay, which uses the HTTP API of the console as a script would.
//
// A browser shows the same at /dead-letters/.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/tidy"
	"github.com/amqpretry/watermill-retry/retry"
)

var policy = config.Policy{Delays: []time.Duration{100 * time.Millisecond}}

// mount makes a console for the dead letters of one queue. Whoever it lets in has signed in
// somewhere before: here by a name and a password, in your service by its own middleware.
func mount(uri, queue, folder string, audit io.Writer) (*dlqweb.Console, error) {
	return dlqweb.New(dlqweb.Config{
		// Before RabbitMQ 4.3 somebody must tell that no policy limits the deliveries of dead
		// letters: the management API, or this field.
		Broker: dlq.Config{URI: uri, NoDeliveryLimitPolicy: true},
		Queues: []string{queue},
		Prefix: "/dead-letters",
		Authorize: func(r *http.Request) (dlqweb.User, dlqweb.Role, error) {
			name, password, _ := r.BasicAuth()
			switch {
			case name == "ann" && password == "secret of ann":
				return "ann", dlqweb.RoleReplay, nil
			case name == "bob" && password == "secret of bob":
				return "bob", dlqweb.RoleMetadata, nil
			default:
				return "", 0, dlqweb.ErrUnauthenticated
			}
		},
		Folder: folder,
		Audit:  slog.NewJSONHandler(audit, nil),
	})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("AMQP_URI"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string, out io.Writer) error {
	orders := "orders-" + watermill.NewShortUUID()
	defer tidy.Topic(uri, orders, policy) // no service deletes its queues
	if err := fail(ctx, uri, orders); err != nil || ctx.Err() != nil {
		return err
	}

	folder, err := os.MkdirTemp("", "console")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }() // a service keeps it: it has the undo files
	var audit bytes.Buffer
	console, err := mount(uri, orders, folder, &audit)
	if err != nil {
		return err
	}
	defer console.Close()

	mux := http.NewServeMux()
	mux.Handle("/dead-letters/", console)
	server := httptest.NewServer(mux)
	defer server.Close()

	api := server.URL + "/dead-letters/api/v1"
	for _, name := range []string{"eve", "bob", "ann"} {
		c := client{api, name}
		var dead struct {
			Title       string
			DeadLetters []struct{ UUID, Reason, Error string } `json:"dead_letters"`
		}
		if err := c.do(ctx, http.MethodGet, "/queues/"+orders+".dlq/dead-letters", nil, &dead); err != nil {
			return err
		}
		if dead.Title != "" {
			fmt.Fprintf(out, "%s: %s\n", name, dead.Title)
		}
		for _, l := range dead.DeadLetters {
			fmt.Fprintf(out, "%s sees %s: %s %q\n", name, l.UUID, l.Reason, l.Error)
		}
	}
	if err := replay(ctx, client{api, "ann"}, orders, out); err != nil {
		return err
	}
	for line := range bytes.Lines(audit.Bytes()) {
		var record struct{ User, Action, Kind, Selection string }
		if err := json.Unmarshal(line, &record); err != nil {
			return err
		}
		fmt.Fprintf(out, "audit: %s, %s of a %s of %s\n", record.User, record.Action, record.Kind, record.Selection)
	}

	return nil
}

// replay plans a run, which counts; confirms it, which begins it; and waits for its end.
func replay(ctx context.Context, c client, queue string, out io.Writer) error {
	plan := map[string]any{
		"kind": "replay", "queue": queue + ".dlq", "filter": map[string]any{"error": []string{"warehouse"}},
	}
	var run struct {
		ID, State string
		Done      int
		Plan      struct{ Total, Matched int }
	}
	if err := c.do(ctx, http.MethodPost, "/runs", plan, &run); err != nil {
		return err
	}
	until := func(state string) error {
		for run.State != state {
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := c.do(ctx, http.MethodGet, "/runs/"+run.ID, nil, &run); err != nil {
				return err
			}
		}
		return nil
	}
	if err := until("ready"); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d match\n", run.Plan.Matched, run.Plan.Total)
	if err := c.do(ctx, http.MethodPost, "/runs/"+run.ID+"/confirm", nil, &run); err != nil {
		return err
	}
	if err := until("done"); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d replayed\n", run.Done)

	return nil
}

// client is one user of the API.
type client struct{ api, name string }

func (c client) do(ctx context.Context, method, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, c.api+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.SetBasicAuth(c.name, "secret of "+c.name)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()

	return json.NewDecoder(response.Body).Decode(answer)
}

// fail is a service on a bad day: three orders die.
func fail(ctx context.Context, uri, topic string) error {
	conf := amqp.NewDurableQueueConfig(uri)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	var dead atomic.Int64
	retrier, err := amqpv2.New(conf, amqpretry.Options{
		Policies: config.Policies{Default: policy},
		Logger:   watermill.NopLogger{}, // this program prints what happens
		OnEvent: func(e retry.Event) {
			if e.Kind == retry.EventDeadLettered && dead.Add(1) == 3 {
				go router.Close()
			}
		},
	})
	if err != nil {
		return err
	}
	defer retrier.Close()
	router.AddMiddleware(retrier.Middleware)
	router.AddPlugin(retrier.CheckRouter)
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	router.AddConsumerHandler("ship", topic, subscriber, func(msg *message.Message) error {
		if msg.UUID == "order-2" {
			return retry.Permanent(errors.New("no such customer"))
		}
		return errors.New("the warehouse does not answer")
	})
	publisher, err := retrier.NewPublisher()
	if err != nil {
		return err
	}
	for _, id := range []string{"order-1", "order-2", "order-3"} {
		if err := publisher.Publish(topic, message.NewMessage(id, []byte(id))); err != nil {
			return err
		}
	}

	return router.Run(ctx)
}
