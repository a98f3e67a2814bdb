package dlqweb_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/examples/demo"
	"github.com/amqpretry/watermill-retry/retry"
)

// authorize lets in whoever has signed in somewhere before: here by a name and a password, in your
// service by its own middleware.
func authorize(r *http.Request) (dlqweb.User, dlqweb.Role, error) {
	name, password, _ := r.BasicAuth()
	switch {
	case name == "ann" && password == "secret of ann":
		return "ann", dlqweb.RoleReplay, nil
	case name == "bob" && password == "secret of bob":
		return "bob", dlqweb.RoleMetadata, nil
	default:
		return "", 0, dlqweb.ErrUnauthenticated
	}
}

// client is one user of the API.
type client struct{ api, name string }

func (c client) do(method, path string, body, answer any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	request, err := http.NewRequest(method, c.api+path, bytes.NewReader(text))
	if err != nil {
		panic(err)
	}
	request.SetBasicAuth(c.name, "secret of "+c.name)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		panic(err)
	}
}

// replay plans a run, which counts; confirms it, which begins it; and waits for its end.
func (c client) replay(queue string) {
	var run struct {
		ID, State string
		Done      int
		Plan      struct{ Total, Matched int }
	}
	until := func(state string) {
		for run.State != state {
			<-time.After(50 * time.Millisecond)
			c.do(http.MethodGet, "/runs/"+run.ID, nil, &run)
		}
	}
	c.do(http.MethodPost, "/runs", map[string]any{
		"kind": "replay", "queue": queue + ".dlq", "filter": map[string]any{"error": []string{"warehouse"}},
	}, &run)
	until("ready")
	fmt.Printf("%d of %d match\n", run.Plan.Matched, run.Plan.Total)
	c.do(http.MethodPost, "/runs/"+run.ID+"/confirm", nil, &run)
	until("done")
	fmt.Printf("%d replayed\n", run.Done)
}

// die is a service on a bad day: three orders are dead letters.
func die(topic string, policy config.Policy) {
	demo.Run(demo.Service{
		Topic: topic, Keep: true, Messages: []string{"order-1", "order-2", "order-3"},
		Options: amqpretry.Options{Policies: config.Policies{Default: policy}},
		Handler: func(msg *message.Message) error {
			if msg.UUID == "order-2" {
				return retry.Permanent(errors.New("no such customer"))
			}
			return errors.New("the warehouse does not answer")
		},
	})
}

// A console in a service, and its HTTP API as a script would use it. A browser shows the same at
// /dead-letters/.
func Example_api() {
	uri, orders := os.Getenv("AMQP_URI"), "orders-"+watermill.NewShortUUID()
	policy := config.Policy{Delays: []time.Duration{100 * time.Millisecond}}
	defer demo.TidyTopic(uri, orders, policy)
	die(orders, policy)

	folder, err := os.MkdirTemp("", "console")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(folder) }() // a service keeps it: it has the undo files
	var audit bytes.Buffer
	console, err := dlqweb.New(dlqweb.Config{
		// Before RabbitMQ 4.3 somebody must tell that no policy limits the deliveries of dead
		// letters: the management API, or this field.
		Broker:    dlq.Config{URI: uri, NoDeliveryLimitPolicy: true},
		Queues:    []string{orders},
		Prefix:    "/dead-letters",
		Authorize: authorize,
		Folder:    folder,
		Audit:     slog.NewJSONHandler(&audit, nil),
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = console.Close() }()
	mux := http.NewServeMux()
	mux.Handle("/dead-letters/", console)
	server := httptest.NewServer(mux)
	defer server.Close()

	api := server.URL + "/dead-letters/api/v1"
	for _, name := range []string{"eve", "bob", "ann"} {
		var dead struct {
			Title       string
			DeadLetters []struct{ UUID, Reason, Error string } `json:"dead_letters"`
		}
		client{api, name}.do(http.MethodGet, "/queues/"+orders+".dlq/dead-letters", nil, &dead)
		if dead.Title != "" {
			fmt.Printf("%s: %s\n", name, dead.Title)
		}
		for _, l := range dead.DeadLetters {
			fmt.Printf("%s sees %s: %s %q\n", name, l.UUID, l.Reason, l.Error)
		}
	}
	client{api, "ann"}.replay(orders)
	for line := range bytes.Lines(audit.Bytes()) {
		var record struct{ User, Action, Kind, Selection, Outcome string }
		if err := json.Unmarshal(line, &record); err != nil {
			panic(err)
		}
		fmt.Println("audit:", record.User, record.Action, record.Kind, record.Selection,
			cmp.Or(record.Outcome, "-"))
	}
	// Unordered output:
	// eve: You are not signed in
	// bob sees order-1: exhausted ""
	// bob sees order-2: permanent ""
	// bob sees order-3: exhausted ""
	// ann sees order-1: exhausted "the warehouse does not answer"
	// ann sees order-2: permanent "no such customer"
	// ann sees order-3: exhausted "the warehouse does not answer"
	// 2 of 3 match
	// 2 replayed
	// audit: ann plan replay error warehouse -
	// audit: ann confirm replay error warehouse -
	// audit: ann end replay error warehouse done
}
