package config

import (
	"fmt"
	"time"
)

// Credentials are what a connection to the broker is opened with.
type Credentials struct {
	// User is the name that the broker knows.
	User string
	// Password is the password, or the token of OAuth 2.
	Password string
	// Expires is when they end. Others are asked for before that. Zero for never.
	Expires time.Time
}

// String hides the password.
func (c Credentials) String() string { return fmt.Sprintf("%q, until %s", c.User, c.Expires) }

// Format hides the password, whatever the verb.
func (c Credentials) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, c.String()) }

// MarshalText hides the password from JSON and logs.
func (c Credentials) MarshalText() ([]byte, error) { return []byte(c.String()), nil }
