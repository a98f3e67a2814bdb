// Package retrier is the retrier for whichever version of watermill-amqp: packages amqpretry and amqpretryv3 translate
// the config of theirs, and give this one's types to their users.
package retrier
