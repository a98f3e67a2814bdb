package dlqweb

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// User is the name of whoever asks, for the audit log.
type User string

// Role is what a user may do. Each role includes those before it.
type Role int

const (
	// RoleMetadata sees queues, numbers, reasons, error types, handlers, topics, times and UUIDs.
	RoleMetadata Role = iota
	// RoleView sees error texts, headers, bodies, messages that wait and runs as well, and exports.
	RoleView
	// RoleReplay replays, moves, parks, imports and undoes.
	RoleReplay
	// RoleDelete purges.
	RoleDelete
)

var roleNames = [...]string{"metadata", "view", "replay", "delete"}

// String is the name of the role: metadata, view, replay, delete.
func (r Role) String() string {
	if r < RoleMetadata || r > RoleDelete {
		return fmt.Sprintf("Role(%d)", int(r))
	}

	return roleNames[r]
}

// ParseRole reads the name of a role.
func ParseRole(name string) (Role, error) {
	for i, known := range roleNames {
		if name == known {
			return Role(i), nil
		}
	}

	return 0, fmt.Errorf("role %q: must be metadata, view, replay or delete", name)
}

// ErrUnauthenticated is what Config.Authorize returns, or wraps, for somebody who has not said who
// he is. The answer is 401 then, and 403 for any other error.
var ErrUnauthenticated = errors.New("not authenticated")

// visitor is who asks.
type visitor struct {
	User User
	Role Role
	// Address of the client, or of the reverse proxy before it.
	Address string
}

func (v visitor) CanView() bool   { return v.Role >= RoleView }
func (v visitor) CanReplay() bool { return v.Role >= RoleReplay }
func (v visitor) CanDelete() bool { return v.Role >= RoleDelete }

// authorize finds out who asks, and refuses a role that is none.
func (c *Console) authorize(r *http.Request) (visitor, error) {
	if c.config.Authorize == nil {
		return visitor{User: "anonymous", Role: RoleMetadata, Address: addressOf(r)}, nil
	}
	user, role, err := c.config.Authorize(r)
	var later interface{ RetryAfter() time.Duration }
	switch {
	case errors.As(err, &later):
		return visitor{}, &problem{Status: http.StatusTooManyRequests, Title: "You cannot sign in now",
			Detail: "Too many sign-ins have failed, or are being checked.", Do: "Wait, then try again.",
			retry: later.RetryAfter()}
	case errors.Is(err, ErrUnauthenticated):
		return visitor{}, &problem{Status: http.StatusUnauthorized, Title: "You are not signed in",
			Detail: "This console needs to know who you are."}
	case err != nil:
		c.config.Logger.Error("Config.Authorize refused a request", err, watermill.LogFields{"path": r.URL.Path})
		return visitor{}, &problem{Status: http.StatusForbidden, Title: "You may not see this console",
			Detail: "The service refused the request. Its log says why."}
	case role < RoleMetadata || role > RoleDelete || user == "":
		return visitor{}, &problem{Status: http.StatusForbidden, Title: "You may not see this console",
			Detail: fmt.Sprintf("Config.Authorize gave the user %q and %v: both are needed.", user, role)}
	}
	if c.config.ReadOnly {
		role = min(role, RoleView)
	}

	return visitor{User: user, Role: role, Address: addressOf(r)}, nil
}

// needs is the refusal of somebody whose role is too low.
func (v visitor) needs(role Role) error {
	if v.Role >= role {
		return nil
	}

	return v.refusal(role, Run{})
}

// mayDo is the refusal of somebody whose role is too low for a run.
func (v visitor) mayDo(r Run) error {
	if v.Role >= r.role() {
		return nil
	}

	return v.refusal(r.role(), r)
}

func (v visitor) refusal(role Role, about Run) *problem {
	return &problem{Status: http.StatusForbidden, Title: "Your role does not allow this",
		Detail: fmt.Sprintf("It needs the role %s, and %s has the role %s.", role, v.User, v.Role),
		needs:  &role, about: about}
}
