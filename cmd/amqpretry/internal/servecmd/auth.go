package servecmd

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// authorize is a dlqweb.Config.Authorize.
type authorize func(*http.Request) (dlqweb.User, dlqweb.Role, error)

// authorizer makes the one that the flags ask for. tried is called for each password that was
// compared.
func (o options) authorizer(tried func(address, user string, right bool)) (authorize, error) {
	roles, err := o.roles()
	if err != nil {
		return nil, err
	}
	kind, value, _ := strings.Cut(o.auth, ":")
	switch kind {
	case "basic":
		users, err := readUsers(value)
		if err != nil {
			return nil, cli.Usage("--auth basic: %w", err)
		}
		p, err := newPasswords(users, roles, tried)
		if err != nil {
			return nil, cli.Usage("--auth basic: %w", err)
		}
		return p.authorize, nil
	case "header":
		trusted, err := o.trusted()
		if err != nil {
			return nil, err
		}
		return byHeader(value, trusted, roles), nil
	default:
		return everybody(roles), nil
	}
}

// everybody is for a loopback address: the user is who has started the console.
func everybody(r roles) authorize {
	name := "local"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}

	return func(*http.Request) (dlqweb.User, dlqweb.Role, error) { return dlqweb.User(name), r.everybody, nil }
}

// byHeader believes a header that comes from a trusted address.
func byHeader(name string, trusted []netip.Prefix, r roles) authorize {
	return func(request *http.Request) (dlqweb.User, dlqweb.Role, error) {
		peer, err := netip.ParseAddrPort(request.RemoteAddr)
		if err != nil {
			return "", 0, err
		}
		address := peer.Addr().Unmap()
		if !slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(address) }) {
			return "", 0, fmt.Errorf("%s is no --trusted-proxy", address)
		}
		users := request.Header.Values(name)
		if len(users) != 1 || users[0] == "" {
			return "", 0, fmt.Errorf("%w: the header %s came %d times", dlqweb.ErrUnauthenticated, name, len(users))
		}

		return dlqweb.User(users[0]), r.of(users[0]), nil
	}
}

// readUsers reads a file as htpasswd -B writes it.
func readUsers(path string) (map[string][]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	users := map[string][]byte{}
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, hash, ok := strings.Cut(line, ":")
		if !ok || name == "" {
			return nil, fmt.Errorf("%s:%d: wanted NAME:HASH", path, number)
		}
		if _, err := bcrypt.Cost([]byte(hash)); err != nil {
			return nil, fmt.Errorf("%s:%d: the hash of %q is not one of bcrypt: write it with htpasswd -B", path,
				number, name)
		}
		if _, twice := users[name]; twice {
			return nil, fmt.Errorf("%s:%d: the user %q is there twice", path, number, name)
		}
		users[name] = []byte(hash)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(users) == 0 {
		return nil, fmt.Errorf("%s: it has no users", path)
	}

	return users, nil
}

// challenge asks browsers for name and password.
func challenge(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&challenger{w}, r)
	})
}

type challenger struct{ http.ResponseWriter }

func (c *challenger) WriteHeader(status int) {
	if status == http.StatusUnauthorized {
		c.Header().Set("WWW-Authenticate", `Basic realm="Dead letters", charset="UTF-8"`)
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *challenger) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// proxyMarks are headers by which a reverse proxy tells of the client before it.
var proxyMarks = []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto",
	"X-Forwarded-Server", "X-Real-Ip"}

// onlyLocal refuses requests that do not come from this machine. A page of another site can have
// its own name lead here, and would then be of the same origin. A reverse proxy on this machine
// can send the name of a loopback address, whoever its client is: nginx does so by default, over
// HTTP/1.0 and without any mark. A browser before it still sends the Origin that it sees.
func onlyLocal(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		marked := slices.ContainsFunc(proxyMarks, func(name string) bool { return len(r.Header.Values(name)) > 0 })
		origin := r.Header.Get("Origin")
		from, err := url.Parse(origin)
		switch {
		case !isLocal(r.Host):
			refuse(w, "Open the console by localhost or a loopback address, or start it with --auth.")
		case marked || !r.ProtoAtLeast(1, 1) || origin != "" && (err != nil || !isLocal(from.Host)):
			refuse(w, "This request came through a reverse proxy (or over HTTP/1.0). A console without sign-in is for "+
				"this machine only. Start it with --auth header:NAME and --trusted-proxy, or with --auth basic:FILE.")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isLocal tells a host, with or without a port, that is this machine in every name service.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))

	return host == "localhost" || err == nil && address.IsLoopback()
}

// refuse answers 403, and waits no longer for a body.
func refuse(w http.ResponseWriter, why string) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(headTimeout))
	http.Error(w, why, http.StatusForbidden)
}
