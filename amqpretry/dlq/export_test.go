package dlq

import "time"

// HoldFor makes the client give messages back after that time, instead of 20 minutes.
func (c *Client) HoldFor(limit time.Duration) { c.longestHold = limit }

// Pretend makes the client take the server for another version.
func (c *Client) Pretend(version string) { c.pretended = version }
