package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client talks to the API of one broker about one virtual host. It may be used by many goroutines.
type Client struct {
	base  string // without the user
	user  *url.Userinfo
	vhost string
	http  http.Client

	timeout time.Duration // of a request
}

// New makes a client for an address such as http://user:password@host:15672, with the plugin's path
// prefix if it has one. A nil httpClient means a plain one; its redirects are not followed, as a
// redirected DELETE becomes a GET.
func New(address, vhost string, httpClient *http.Client) (*Client, error) {
	// Nothing of an address that cannot be used is in the error: nobody knows then what belongs to
	// the password.
	const wanted = "wanted http://user:password@host:15672 (in the user and the password, characters such as / ? # @ " +
		": %% are written as %%2F %%3F %%23 %%40 %%3A %%25)"
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("management API: the address is not a URL: " + wanted)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("management API: the scheme of the address is not http or https: " + wanted)
	case u.Host == "":
		return nil, fmt.Errorf("management API: the address has no host: " + wanted)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, fmt.Errorf("management API: the address has a query or a fragment: " + wanted)
	case u.User == nil && strings.Contains(u.Path, "@"):
		return nil, fmt.Errorf("management API: the address has an @ in its path and no user: " + wanted)
	}
	c := &Client{user: u.User, vhost: vhost, timeout: requestTimeout}
	if httpClient != nil {
		c.http = *httpClient
	}
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	u.User = nil
	c.base = strings.TrimRight(u.String(), "/")
	return c, nil
}

// request is one question to the API. The segments of path are unescaped; needs says what the user
// must be allowed for it.
type request struct {
	method string
	path   []string
	query  string
	body   any
	needs  string
}

// send sends a request and gives the answer to read. A nil read takes the status for an answer.
func (c *Client) send(ctx context.Context, r request, left *bounds, read func(*answer) error) error {
	address := c.base + "/api"
	fail := func(status int, reason string, err error) error {
		return &Error{Method: r.method, URL: address, User: c.user.Username(), VHost: c.vhost, Needs: r.needs,
			Status: status, Reason: reason, Err: err}
	}
	for _, segment := range r.path {
		address += "/" + url.PathEscape(segment)
		if segment == "." || segment == ".." {
			return fail(0, "", fmt.Errorf("the API takes the name %q for a step in the path, however it is escaped",
				segment))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	request, err := c.request(ctx, r.method, address+r.query, r.body)
	if err != nil {
		return fail(0, "", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) { // says method and address again
			err = wrapped.Err
		}
		return fail(0, "", err)
	}
	defer func() { _ = response.Body.Close() }()
	kind := response.Header.Get("Content-Type")
	switch status := response.StatusCode; {
	case done(r.method, status) && read == nil:
		return nil
	case status == http.StatusUnauthorized: // RabbitMQ says nothing more to a request without a user
		return fail(status, reasonOf(response), nil)
	case !strings.HasPrefix(kind, "application/json") || status < 400 && !done(r.method, status):
		return fail(status, "", &foreignError{found: instead(kind), location: short(response.Header.Get("Location"))})
	case status >= 400:
		return fail(status, reasonOf(response), nil)
	}
	a := newAnswer(response.Body, left)
	if err = read(a); err == nil {
		err = a.end()
	}
	if err != nil {
		return fail(response.StatusCode, "", unread(err))
	}
	return nil
}

// do changes something.
func (c *Client) do(ctx context.Context, r request) error { return c.send(ctx, r, nil, nil) }

// get asks for one object.
func get[T any](ctx context.Context, c *Client, path []string, query, needs string) (one T, err error) {
	err = c.send(ctx, request{method: http.MethodGet, path: path, query: query, needs: needs}, newBounds(),
		func(a *answer) (err error) {
			one, err = object[T](a)
			return err
		})
	return one, err
}

// list asks for a list that has no pages.
func list[T any](ctx context.Context, c *Client, path []string, query, needs string) (all []T, err error) {
	err = c.send(ctx, request{method: http.MethodGet, path: path, query: query, needs: needs}, newBounds(),
		func(a *answer) (err error) {
			all, err = elements[T](a)
			return err
		})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// short is as much of what the other side says as an error shows.
func short(text string) string {
	if len(text) <= mostWords {
		return text
	}
	return strings.ToValidUTF8(text[:mostWords], "") + "…"
}

// done tells whether the API did it: only these are its own words for it, and a proxy may have
// others.
func done(method string, status int) bool {
	switch method {
	case http.MethodGet:
		return status == http.StatusOK
	case http.MethodDelete:
		return status == http.StatusNoContent
	default:
		return status == http.StatusCreated || status == http.StatusNoContent
	}
}

func (c *Client) request(ctx context.Context, method, address string, body any) (*http.Request, error) {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, address, content)
	if err != nil {
		return nil, err
	}
	if c.user != nil {
		password, _ := c.user.Password()
		request.SetBasicAuth(c.user.Username(), password)
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Cache-Control", "no-cache")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return request, nil
}

// StatisticsDisabled tells whether the broker is set up to keep no statistics. Then no queue says
// how many messages it has, or says it without the rest.
func (c *Client) StatisticsDisabled(ctx context.Context) (bool, error) {
	type overview struct {
		Disabled bool `json:"disable_stats"`
	}
	o, err := get[overview](ctx, c, []string{"overview"}, "?columns=disable_stats", "")
	return o.Disabled, err
}
