package dlq

import "time"

// HoldFor makes the client give messages back after that time, instead of 20 minutes.
func (c *Client) HoldFor(limit time.Duration) { c.longestHold = limit }

// RoomFor bounds what is on its way to a browse or a run, in bytes, instead of 64 MiB.
func (c *Client) RoomFor(bytes int) { c.room = bytes }

// Impatient makes it tell of every message that it passes.
func (c *Client) Impatient() { c.patience = -1 }

// AnswerWithin is how long the broker has to answer, instead of 2 minutes.
func (c *Client) AnswerWithin(limit time.Duration) { c.answerTime = limit }

// Pretend makes the client take the server for another version.
func (c *Client) Pretend(version string) { c.pretended = version }

// Ended tells whether the client has ended its browses.
func (c *Client) Ended() bool { return c.scans.client.Err() != nil }
