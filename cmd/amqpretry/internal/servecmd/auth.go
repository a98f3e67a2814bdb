package servecmd

import (
	"bufio"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/bcrypt"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// authorize is a dlqweb.Config.Authorize.
type authorize func(*http.Request) (dlqweb.User, dlqweb.Role, error)

// authorizer makes the one that the flags ask for.
func (o options) authorizer() (authorize, error) {
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
		return (&passwords{users: users, roles: roles, key: []byte(rand.Text())}).authorize, nil
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

// passwords checks names and passwords.
type passwords struct {
	users map[string][]byte
	roles roles

	key   []byte // for the sums of known, so that memory has no passwords
	mu    sync.Mutex
	known map[[sha256.Size]byte]bool
}

// nobody is a hash that no password has, so that a name that is not there takes as long.
var nobody = sync.OnceValue(func() []byte {
	hash, _ := bcrypt.GenerateFromPassword([]byte(rand.Text()), bcrypt.DefaultCost)
	return hash
})

func (p *passwords) authorize(r *http.Request) (dlqweb.User, dlqweb.Role, error) {
	name, password, ok := r.BasicAuth()
	if !ok || !p.right(name, password) {
		return "", 0, dlqweb.ErrUnauthenticated
	}

	return dlqweb.User(name), p.roles.of(name), nil
}

// mostKnown bounds how many right passwords are remembered.
const mostKnown = 1000

// right compares a password. bcrypt takes its time, so a right one is remembered.
func (p *passwords) right(name, password string) bool {
	mac := hmac.New(sha256.New, p.key)
	_, _ = mac.Write([]byte(name + "\x00" + password))
	sum := [sha256.Size]byte(mac.Sum(nil))
	p.mu.Lock()
	known := p.known[sum]
	p.mu.Unlock()
	if known {
		return true
	}

	hash, there := p.users[name]
	if !there {
		hash = nobody()
	}
	if bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || !there {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil || len(p.known) >= mostKnown {
		p.known = map[[sha256.Size]byte]bool{}
	}
	p.known[sum] = true

	return true
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

// onlyLocal refuses names that are not those of this machine: a page of another site can have its
// own name lead here, and would then be of the same origin.
func onlyLocal(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		host = strings.Trim(host, "[]")
		address, err := netip.ParseAddr(host)
		if host != "localhost" && (err != nil || !address.IsLoopback()) {
			http.Error(w, "Open the console by localhost or a loopback address, or start it with --auth.",
				http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
