// Package republish publishes copies of messages until the broker has confirmed them: only then may what they were made
// of be acknowledged.
//
//	Forwarder ──► QueueForwarder    the copies of failed messages: one confirm channel for each main queue and exchange
//	Publisher                       for the dead-letter tools
package republish
