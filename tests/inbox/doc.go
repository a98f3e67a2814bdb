// Package inbox has the proof of the inboxes of package protect: processes of a service handle
// messages of RabbitMQ with effects in PostgreSQL, and are killed at random moments. Then the
// effects are counted. See make inbox.
package inbox
