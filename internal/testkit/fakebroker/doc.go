// Package fakebroker is as much of a broker as it takes to see what a client does when the broker
// answers late, wrongly or never. What RabbitMQ does by itself is tested against RabbitMQ.
package fakebroker
