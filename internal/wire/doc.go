// Package wire is the codec of the headers of wire format version 1: what a message carries of its
// failures, and what a reader may believe of it.
//
// It is functions over values, without a broker. Header tables are map[string]any, the underlying
// type of an AMQP table.
package wire
