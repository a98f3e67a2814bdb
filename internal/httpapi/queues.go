package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// Queue is what the API says of a queue. What is nil was not in the answer.
type Queue struct {
	Name      string    `json:"name"`
	VHost     string    `json:"vhost"`
	Type      string    `json:"type"`
	Arguments Arguments `json:"arguments"`
	// State is running for a queue that works, but 4.3 also says so of a classic one whose node is
	// down.
	//
	// Upstream: the API says that a classic queue runs whose node is down; no issue known,
	// measured; RabbitMQ 4.3; no test; remove when it says down.
	State string `json:"state"`
	// Leader, Members and Online are the nodes of a quorum queue; what is online is asked for at
	// once.
	Leader  string   `json:"leader"`
	Members []string `json:"members"`
	Online  []string `json:"online"`
	// Owner is the connection that has declared an exclusive queue.
	Owner struct {
		Connection string `json:"name"`
	} `json:"owner_pid_details"`
	// Node is the one whose statistics these are.
	Node string `json:"node"`

	// The statistics are some seconds old: 5 to 10 with the broker's defaults.

	// Messages are all of them. Ready are those that a consumer could have; Undeliverable those of
	// a quorum queue that it dead-letters at least once and that their target has not confirmed
	// yet.
	Messages *int64 `json:"messages"`
	Ready    *int64 `json:"messages_ready"`
	Unacked  *int64 `json:"messages_unacknowledged"`
	// ReadyBytes are those of the bodies of the ready messages.
	ReadyBytes    *int64 `json:"message_bytes_ready"`
	Undeliverable *int64 `json:"messages_dlx"`
	// Delayed are those that a quorum queue holds back until their x-opt-delivery-time (RabbitMQ
	// 4.4 and later).
	Delayed   *int64 `json:"messages_delayed"`
	Consumers *int64 `json:"consumers"`
	// Reductions count the work of the queue's process. Those of a quorum queue grow with each
	// renewal of its statistics, every 5 s by default; those of an idle classic queue do not.
	Reductions *int64 `json:"reductions"`

	// Policy and OperatorPolicy are the names of those that apply; nil also where there is none.
	// Effective is what both together say; nil as long as there are no statistics.
	Policy         *string   `json:"policy"`
	OperatorPolicy *string   `json:"operator_policy"`
	Effective      Arguments `json:"effective_policy_definition"`
}

// HeldBack is how many messages a quorum queue holds back until their x-opt-delivery-time; nil if
// that cannot be told.
func (q Queue) HeldBack() *int64 {
	if q.Delayed != nil || q.Messages == nil || q.Ready == nil || q.Unacked == nil {
		return q.Delayed
	}
	rest := *q.Messages - *q.Ready - *q.Unacked
	if q.Undeliverable != nil {
		rest -= *q.Undeliverable
	}
	rest = max(0, rest)

	return &rest
}

// HasMajority tells whether a quorum queue can take messages: more than half of its members are
// online.
func (q Queue) HasMajority() bool { return 2*len(q.Online) > len(q.Members) }

// Arguments are those of a queue or a binding; whole numbers are int64.
type Arguments map[string]any

// UnmarshalJSON reads an object, and takes an empty list for an empty one, as Erlang does.
func (a *Arguments) UnmarshalJSON(data []byte) error {
	if string(data) == "[]" {
		*a = Arguments{}
		return nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	*a = make(Arguments, len(raw))
	for key, value := range raw {
		var whole int64
		if json.Unmarshal(value, &whole) == nil && string(value) != "null" {
			(*a)[key] = whole
			continue
		}
		var other any
		if err := json.Unmarshal(value, &other); err != nil {
			return err
		}
		(*a)[key] = other
	}
	return nil
}

// pageSize is the most that the API gives at once.
const pageSize = 500

// Queues lists all queues of the virtual host by name, with their state and without statistics.
func (c *Client) Queues(ctx context.Context) ([]Queue, error) {
	return c.queues(ctx, "name,vhost,type,arguments,state,leader,node")
}

// Counts lists all queues of the virtual host by name, with the numbers of their messages and
// consumers.
func (c *Client) Counts(ctx context.Context) ([]Queue, error) {
	return c.queues(ctx, "name,vhost,type,arguments,state,messages,messages_ready,messages_unacknowledged,"+
		"messages_dlx,messages_delayed,consumers")
}

// queues lists all queues of the virtual host by name, with these columns.
func (c *Client) queues(ctx context.Context, columns string) ([]Queue, error) {
	within, cancel := context.WithTimeoutCause(ctx, mostTime, tooMuch("%s", mostTime))
	defer cancel()
	var queues []Queue
	left := newBounds()
	for number := 1; ; number++ {
		var found page
		query := fmt.Sprintf("?page=%d&page_size=%d&sort=name&columns=%s", number, pageSize, columns)
		err := c.send(within, request{method: http.MethodGet, path: []string{"queues", c.vhost}, query: query}, left,
			func(a *answer) (err error) {
				if found, err = readPage(a); err == nil {
					err = found.check(number)
				}
				return err
			})
		var refused *Error
		switch asked := errors.As(err, &refused); {
		case asked && number > 1 && refused.Status == http.StatusBadRequest:
			return queues, nil // out of range: queues were deleted meanwhile
		case NotFound(err):
			return nil, hidden(err)
		case asked && within.Err() != nil && ctx.Err() == nil:
			refused.Err = context.Cause(within)
			return nil, refused
		case err != nil:
			return nil, err
		}
		for _, queue := range found.items {
			if queue.VHost != c.vhost {
				return nil, c.astray(queue.VHost, queue.Name)
			}
		}
		queues = append(queues, found.items...)
		if number >= *found.pages {
			return queues, nil
		}
	}
}

// Queue returns one queue with its statistics.
//
// A 404 for a queue says too little: RabbitMQ 3.10 answers so as long as the node of a classic
// queue is down, and 4.3 when the user has no access to the virtual host. So the error is a
// [NotFound] only when the list of all queues is to be had and the queue is not on it. When it is,
// this is what the list says, without statistics.
//
// Upstream: a 404 for a queue that exists; no issue known, measured; RabbitMQ 3.10 (its node is
// down), RabbitMQ 4.3 (no access to the virtual host); TestObsolete_OwnBroker; remove when neither
// is supported.
func (c *Client) Queue(ctx context.Context, name string) (Queue, error) {
	queue, err := get[Queue](ctx, c, []string{"queues", c.vhost, name}, "", "")
	if err == nil && (queue.Name != name || queue.VHost != c.vhost) {
		return Queue{}, c.astray(queue.VHost, queue.Name)
	}
	if !NotFound(err) {
		return queue, err
	}
	queues, listing := c.Queues(ctx)
	if listing != nil {
		return Queue{}, listing
	}
	for _, queue := range queues {
		if queue.Name == name {
			return queue, nil
		}
	}
	return Queue{}, err
}

// DeleteQueue deletes a queue, whatever is in it. With ifIdle the broker itself refuses (400) when
// it has consumers or messages that are ready; quorum queues do not know this condition.
//
// Upstream: a quorum queue cannot be deleted only if it is unused or empty; no issue known, read in
// its source; RabbitMQ 3.10 to 4.3; TestFreshnessIsCertain; remove when quorum queues know these
// conditions.
func (c *Client) DeleteQueue(ctx context.Context, name string, ifIdle bool) error {
	query := ""
	if ifIdle {
		query = "?if-empty=true&if-unused=true"
	}
	return c.do(ctx, request{method: http.MethodDelete, path: []string{"queues", c.vhost, name}, query: query,
		needs: fmt.Sprintf("configure on queue %q", name)})
}

// astray is an answer about something else: a proxy that takes %2F for a slash asks the API for
// another path.
func (c *Client) astray(vhost, queue string) error {
	return &Error{Method: http.MethodGet, URL: c.base + "/api/queues", User: c.user.Username(), VHost: c.vhost,
		Status: http.StatusOK,
		Err: fmt.Errorf("the answer is about queue %q of the virtual host %q: a proxy in between must leave %%2F "+
			"in paths as it is", queue, vhost)}
}
