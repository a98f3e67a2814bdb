package postgresstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/middleware/protect"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/postgresstore"
)

// The effects of handlers and the marks that messages were handled are committed together.
func Example() {
	setUp := func(ctx context.Context, uri string, router *message.Router, retrier *amqpretry.Retrier) error {
		db, err := sql.Open("pgx", uri)
		if err != nil {
			return err
		}
		inbox, err := postgresstore.New(db, postgresstore.Config{})
		if err != nil {
			return err
		}
		if err := inbox.CreateTables(ctx); err != nil {
			return err
		}
		transactional, err := protect.NewTransactional(protect.TransactionalConfig{DB: db, Inbox: inbox})
		if err != nil {
			return err
		}
		router.AddMiddleware(retrier.Middleware, transactional.Middleware)
		go inbox.KeepClean(ctx, time.Hour, nil)

		return nil
	}
	_ = setUp
}

// A migration has the statements that CreateTables runs.
func ExampleStore_Schema() {
	db, err := sql.Open("pgx", "postgres://localhost")
	if err != nil {
		panic(err)
	}
	inbox, err := postgresstore.New(db, postgresstore.Config{Table: "retry.inbox"})
	if err != nil {
		panic(err)
	}
	fmt.Println(inbox.Schema()[1])
	// Output: CREATE INDEX IF NOT EXISTS "inbox_stamp" ON "retry"."inbox" (stamp)
}
