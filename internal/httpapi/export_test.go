package httpapi

import "time"

// WithTimeout gives a client more time for each request: a busy machine takes long for an answer
// that is as large as may be.
func (c *Client) WithTimeout(d time.Duration) *Client {
	c.timeout = d

	return c
}
