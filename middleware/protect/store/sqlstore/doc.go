// Package sqlstore keeps what the middlewares of package protect share in a SQL database: which
// messages were handled, and the state of rate limits and circuit breakers. [Postgres] is for
// PostgreSQL 12 or later, [MySQL] for MariaDB 10.6 or MySQL 8.0, as older servers have no SKIP
// LOCKED. It uses database/sql with the driver of the program: pgx's stdlib or lib/pq, or
// go-sql-driver/mysql. It imports none of them.
//
//	db, err := sql.Open("pgx", uri)
//	...
//	inbox, err := sqlstore.Postgres(db, sqlstore.Config{})
//	...
//	err = inbox.CreateTables(ctx) // or the statements of Schema in a migration
//	...
//	go inbox.KeepClean(ctx, time.Hour, nil)
//
// All times are those of the server's clock, in UTC. Handlers, keys and names are stored as bytes;
// those that are longer than 255 bytes are stored as SHA-256. To read them in PostgreSQL (MySQL:
// CONVERT(handler USING utf8mb4)):
//
//	SELECT convert_from(handler, 'UTF8'), convert_from(message_key, 'UTF8'), done, stamp FROM amqpretry_inbox;
package sqlstore
