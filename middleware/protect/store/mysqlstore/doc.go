// Package mysqlstore keeps what the middlewares of package protect share in MariaDB or MySQL: which
// messages were handled, and the state of rate limits and circuit breakers. It uses database/sql
// with the driver go-sql-driver/mysql. It needs MariaDB 10.6 or MySQL 8.0, as older servers have no
// SKIP LOCKED.
//
//	db, err := sql.Open("mysql", dsn)
//	...
//	inbox, err := mysqlstore.New(db, mysqlstore.Config{})
//	...
//	err = inbox.CreateTables(ctx) // or the statements of Schema in a migration
//	...
//	go inbox.KeepClean(ctx, time.Hour, nil)
//
// All times are those of the server's clock, in UTC. Handlers, keys and names are stored as bytes;
// those that are longer than 255 bytes are stored as SHA-256. To read them:
//
//	SELECT CONVERT(handler USING utf8mb4), CONVERT(message_key USING utf8mb4), done, stamp FROM amqpretry_inbox;
package mysqlstore
