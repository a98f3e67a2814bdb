package sqlstore_test

import (
	"database/sql"
	"fmt"

	"github.com/amqpretry/watermill-retry/middleware/protect/store/sqlstore"
)

// A migration has the statements that CreateTables runs.
func ExampleStore_Schema() {
	db, err := sql.Open("pgx", "postgres://localhost") // which does not connect
	if err != nil {
		panic(err)
	}
	inbox, err := sqlstore.Postgres(db, sqlstore.Config{Table: "retry.inbox"})
	if err != nil {
		panic(err)
	}
	fmt.Println(inbox.Schema()[1])
	// Output: CREATE INDEX IF NOT EXISTS "inbox_stamp" ON "retry"."inbox" (stamp)
}
