package inbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/sqlstore"
	"github.com/amqpretry/watermill-retry/retry"
)

// form is how a service keeps from handling a message twice.
type form string

const (
	none          form = "none"
	lease         form = "lease"       // a Deduplicator with an Inbox
	transactional form = "transaction" // a Transactional
)

// service says what a process is to do. It is started as this test binary, with the service in the
// environment.
type service struct {
	Broker, Database string
	Queue            string
	Form             form
	Inbox            sqlstore.Config
	Effects          string // table
	Lease            time.Duration
}

const (
	variable = "AMQPRETRY_INBOX_SERVICE"
	longest  = 10 * time.Millisecond // that a handler takes beside its effect
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(variable); spec != "" {
		if err := serve(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func (s *service) retrier() (*adapter.Retrier, error) {
	conf := amqp.NewDurableQueueConfig(s.Broker)
	// Only the inbox is measured, not what becomes of a message that is there at many crashes.
	conf.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(100_000)}
	policy := config.Policy{
		Delays: []time.Duration{100 * time.Millisecond, 500 * time.Millisecond}, Retries: 100,
		CrashLimit: 19,
	}

	return adapter.New(conf, amqpretry.Options{
		Policies: config.Policies{Default: policy}, Concurrency: 8, Prefetch: 16,
		CloseTimeout: 10 * time.Second,
	})
}

// middleware returns that of the form.
func (s *service) middleware(db *sql.DB) (message.HandlerMiddleware, error) {
	if s.Form == none {
		return func(h message.HandlerFunc) message.HandlerFunc { return h }, nil
	}
	inbox, err := sqlstore.Postgres(db, s.Inbox)
	if err != nil {
		return nil, err
	}
	if s.Form == lease {
		d, err := protect.NewDeduplicator(protect.DeduplicatorConfig{
			KeyFactory: protect.KeyByUUID, Inbox: inbox, Lease: s.Lease,
		})
		if err != nil {
			return nil, err
		}

		return d.Middleware, nil
	}
	t, err := protect.NewTransactional(protect.TransactionalConfig{DB: db, Inbox: inbox})
	if err != nil {
		return nil, err
	}

	return t.Middleware, nil
}

// serve runs a service until its standard input ends.
func serve(spec string) error {
	var s service
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return err
	}
	db, err := sql.Open("pgx", s.Database)
	if err != nil {
		return err
	}
	db.SetMaxIdleConns(16)
	retrier, err := s.retrier()
	if err != nil {
		return err
	}
	subscriber, err := retrier.NewSubscriber()
	if err != nil {
		return err
	}
	protection, err := s.middleware(db)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("effects", s.Queue, subscriber, s.handler(db)).
		AddMiddleware(retrier.Middleware, protection)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = router.Close()
	}()
	go func() {
		<-router.Running()
		_, _ = fmt.Fprintln(os.Stdout, "ready")
	}()
	if err := router.Run(context.Background()); err != nil {
		return err
	}

	return errors.Join(retrier.Close(), db.Close())
}

var errOnce = errors.New("every seventh message fails once")

// handler makes one effect for each call: a row, in the transaction where there is one. The
// sequence counts calls, also those that are rolled back.
func (s *service) handler(db *sql.DB) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		ctx := msg.Context()
		attempt, _ := retry.AttemptFromContext(ctx)
		fails := attempt.Number == 1 && fails(msg.UUID)
		exec := db.ExecContext
		if tx := protect.TxFromContext(ctx); tx != nil {
			exec = tx.ExecContext
		} else if fails { // what it has done would stay
			return errOnce
		}
		_, err := exec(ctx, "INSERT INTO "+s.Effects+" VALUES ($1, nextval('"+s.Effects+"_calls'))", msg.UUID)
		<-time.After(rand.N(longest))
		if err == nil && fails {
			return errOnce
		}

		return err
	}
}

// fails tells whether the first attempt at a message fails.
func fails(id string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))

	return h.Sum32()%7 == 0
}
