// Package connection is a connection to RabbitMQ that comes back.
//
//	Connection ──► Link    one live connection; replaced after each loss, with backoff
//
// It tries the nodes of a cluster in turn, has bounds for everything that a broker may not answer,
// and says what is wrong in words that amqp091-go has not.
package connection
