// Package codec is what a message looks like on the wire, without a connection: a delivery becomes
// a message of Watermill (Decode), what is published in its place when it has failed (CopyOf) or is
// replayed (ReplayOf), and what its dead letter tells (DeadLetter). Readable takes from a
// connection what amqp091-go cannot read.
//
// What our headers mean is in package wire.
package codec
