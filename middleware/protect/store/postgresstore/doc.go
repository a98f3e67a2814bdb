// Package postgresstore keeps what the middlewares of package protect share in PostgreSQL: which
// messages were handled, and the state of rate limits and circuit breakers. It uses database/sql,
// with the driver of the program: pgx's stdlib or lib/pq.
//
//	db, err := sql.Open("pgx", uri)
//	...
//	inbox, err := postgresstore.New(db, postgresstore.Config{})
//	...
//	err = inbox.CreateTables(ctx) // or the statements of Schema in a migration
//	...
//	go inbox.KeepClean(ctx, time.Hour, nil)
//
// All times are those of the server's clock. Handlers, keys and names are stored as bytes; those
// that are longer than 255 bytes are stored as SHA-256. To read them:
//
//	SELECT convert_from(handler, 'UTF8'), convert_from(message_key, 'UTF8'), done, stamp FROM amqpretry_inbox;
package postgresstore
