// Package cli is what the commands of amqpretry have in common: how they reach a broker, how they
// print, how they end.
//
// A command has the world through a [Session] and nothing else, so that a test can run all of it
// with buffers.
package cli
