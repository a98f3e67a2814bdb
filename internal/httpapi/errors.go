package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// Error is a request that the management API did not answer as it was wanted.
type Error struct {
	// Method and URL of the request; the URL has no user and no password.
	Method, URL string
	// User and VHost as they were given.
	User, VHost string
	// Needs is what the user must be allowed for it, beyond a tag and access to the virtual host;
	// "" for reading.
	Needs string
	// Status of the answer; 0 when there was none.
	Status int
	// Reason in the API's own words.
	Reason string
	// Err is why there was no answer, or why it cannot be the API's.
	Err error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("management API: %s %s: ", e.Method, e.URL)
	const check = "; check the address: is it the API itself (port 15672 by default), or a proxy's page?"
	var foreign *foreignError
	var limit *limitError
	switch {
	case errors.As(e.Err, &foreign):
		return text + fmt.Sprintf("%d, and %v", e.Status, foreign) + check
	case errors.As(e.Err, &limit):
		return text + limit.Error() + check
	case e.Status == 0 && e.timeout():
		return text + fmt.Sprintf("no answer in time (%v)", e.Err)
	case e.timeout():
		return text + fmt.Sprintf("%d, but the answer did not end in time (%v)", e.Status, e.Err)
	case e.Status == 0:
		return text + fmt.Sprintf("no answer: %v; check the address, and that the plugin is on (rabbitmq-plugins "+
			"enable rabbitmq_management)", e.Err)
	case e.Err != nil:
		return text + fmt.Sprintf("%d, %v", e.Status, e.Err)
	case e.Status == http.StatusUnauthorized && e.User == "":
		return text + "401: the address has no user; write it as http://user:password@host:15672"
	case e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden:
		return text + fmt.Sprintf("%d, %s: user %q needs the right password, the tag management, access to the "+
			"virtual host %q%s",
			e.Status, e.reason(), e.User, e.VHost, e.needs())
	// Upstream: a 404 for a queue that exists.
	case e.Status == http.StatusNotFound:
		return text + fmt.Sprintf("404, %q; RabbitMQ 4.3 also says so when user %q has no access to the virtual host "+
			"%q", e.Reason, e.User, e.VHost)
	default:
		return text + fmt.Sprintf("%d, %q", e.Status, e.Reason)
	}
}

func (e *Error) reason() string {
	if e.Reason == "" {
		return "credentials refused"
	}
	return strconv.Quote(e.Reason)
}

func (e *Error) Unwrap() error { return e.Err }

func (e *Error) needs() string {
	if e.Needs == "" {
		return ""
	}
	return ", and " + e.Needs
}

func (e *Error) timeout() bool {
	var timeout interface{ Timeout() bool }
	return errors.As(e.Err, &timeout) && timeout.Timeout()
}

// NotFound tells whether the API itself, and not some proxy, said that the object is not there.
func NotFound(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound && e.Err == nil
}

// hidden is a 404 for the virtual host itself, of which no queue can be said to be gone.
func hidden(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	found := *e
	found.Err = fmt.Errorf("there is no virtual host %q, or user %q has no access to it", e.VHost, e.User)
	return &found
}

// foreignError is an answer that the API does not give.
type foreignError struct{ found, location string }

func foreign(format string, args ...any) error {
	return &foreignError{found: fmt.Sprintf(format, args...)}
}

// instead is what a Content-Type tells.
func instead(contentType string) string {
	if contentType == "" {
		return "an answer that is not the API's"
	}
	return short(contentType) + " instead of what was asked for"
}

func (e *foreignError) Error() string {
	if e.location != "" {
		return fmt.Sprintf("a redirect to %s, which is not followed", e.location)
	}
	return e.found
}

// limitError is an answer beyond the bounds of the client.
type limitError struct{ limit string }

func tooMuch(format string, args ...any) error { return &limitError{fmt.Sprintf(format, args...)} }

func (e *limitError) Error() string {
	return "the answer, with all its pages, is over this client's limit of " + e.limit
}
