// Package contextkey has the keys under which a message's context carries what handlers ask package retry for.
package contextkey

// Delivery is the key of what tells where a message stands.
type Delivery struct{}

// DeadLetter is the key of what a dead letter tells of its failure.
type DeadLetter struct{}
