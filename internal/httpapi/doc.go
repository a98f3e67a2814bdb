// Package httpapi is a small client for the HTTP API of RabbitMQ's management plugin, for one
// virtual host.
//
// It says what the API said and no more: a number that is missing from an answer is nil and never
// 0, an answer that is not the API's own is an error, and a queue counts as absent only where the
// API lists all queues but that one.
package httpapi
