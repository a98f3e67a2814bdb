package servecmd

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/time/rate"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
)

const (
	// freeFailures is how many sign-ins in a row may fail before the next one has to wait. The
	// delay doubles with each further failure, from firstDelay to longestDelay.
	freeFailures = 5
	firstDelay   = time.Second
	longestDelay = time.Minute
	// forgetAfter is the time after which failures no longer count.
	forgetAfter = 15 * time.Minute
	// mostCounted bounds how many addresses and names have a count.
	mostCounted = 10_000
	// mostWaiting is how many sign-ins wait while one is checked, and longestWait for how long.
	mostWaiting = 16
	longestWait = 5 * time.Second
	// mostName is how much of a user name is counted and written to logs.
	mostName = 64
)

// delayError refuses a sign-in for a while. The console answers it with 429 and Retry-After.
type delayError struct{ after time.Duration }

func (e *delayError) Error() string {
	return fmt.Sprintf("too many sign-ins; try again in %v", e.after.Round(time.Second))
}

// RetryAfter is when to try again.
func (e *delayError) RetryAfter() time.Duration { return e.after }

// failures counts failed sign-ins by client address and by user name.
type failures struct {
	now    func() time.Time
	mu     sync.Mutex
	counts map[string]failure
}

type failure struct {
	n           int
	last, until time.Time
}

// begin counts a sign-in as failed before its result is known, so that parallel ones are counted as
// well. It returns a *delayError if one of the keys has to wait.
func (f *failures) begin(keys ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	for _, key := range keys {
		if wait := f.counts[key].until.Sub(now); wait > 0 {
			return &delayError{wait}
		}
	}
	for _, key := range keys {
		count := f.counts[key]
		if now.Sub(count.last) > forgetAfter {
			count = failure{}
		}
		count.n, count.last = count.n+1, now
		if count.n >= freeFailures {
			count.until = now.Add(min(firstDelay<<min(count.n-freeFailures, 10), longestDelay))
		}
		f.makeRoom(key)
		f.counts[key] = count
	}

	return nil
}

// makeRoom drops the count that has not changed for longest. The lock is held.
func (f *failures) makeRoom(key string) {
	if _, there := f.counts[key]; there || len(f.counts) < mostCounted {
		return
	}
	oldest := ""
	for key, count := range f.counts {
		if oldest == "" || count.last.Before(f.counts[oldest].last) {
			oldest = key
		}
	}
	delete(f.counts, oldest)
}

// takeBack is for a sign-in that begin has counted and that did not fail.
func (f *failures) takeBack(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := f.counts[key]
	if count.n--; count.n <= 0 {
		delete(f.counts, key)
		return
	}
	count.until = time.Time{}
	f.counts[key] = count
}

// reset is for a user who has signed in.
func (f *failures) reset(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.counts, key)
}

// passwords checks names and passwords.
type passwords struct {
	users map[string][]byte
	roles roles
	tried func(address, user string, right bool)

	// decoys are hashes that no password has, by cost, up to the highest cost of the users. With
	// them each check takes the same time, whether or not there is such a user.
	decoys   map[int][]byte
	highest  int
	hashesTo func(hash, password []byte) error

	failures failures
	waiting  chan struct{} // who has put something in it waits to put something in hashing
	hashing  chan struct{} // who has put something in it compares a hash

	key      []byte // for the sums, so that memory has no passwords
	mu       sync.Mutex
	known    map[string][sha256.Size]byte // the right password of each user who has signed in
	checking map[[sha256.Size]byte]*check
}

// check is a sign-in that is checked. Parallel requests with the same name and password wait for
// one.
type check struct {
	done chan struct{}
	err  error
}

func newPasswords(users map[string][]byte, roles roles, tried func(address, user string, right bool)) (*passwords,
	error) {
	p := &passwords{users: users, roles: roles, tried: tried, decoys: map[int][]byte{},
		hashesTo: bcrypt.CompareHashAndPassword,
		failures: failures{now: time.Now, counts: map[string]failure{}},
		waiting:  make(chan struct{}, mostWaiting), hashing: make(chan struct{}, 1),
		key: []byte(rand.Text()), known: map[string][sha256.Size]byte{}, checking: map[[sha256.Size]byte]*check{}}
	lowest := bcrypt.MaxCost
	for _, hash := range users {
		cost, err := bcrypt.Cost(hash)
		if err != nil {
			return nil, err
		}
		lowest, p.highest = min(lowest, cost), max(p.highest, cost)
	}
	for cost := lowest; cost <= p.highest; cost++ {
		var err error
		if p.decoys[cost], err = bcrypt.GenerateFromPassword([]byte(rand.Text()), cost); err != nil {
			return nil, err
		}
	}

	return p, nil
}

func (p *passwords) authorize(r *http.Request) (dlqweb.User, dlqweb.Role, error) {
	name, password, ok := r.BasicAuth()
	if !ok {
		return "", 0, dlqweb.ErrUnauthenticated
	}
	if err := p.check(clientOf(r), name, password); err != nil {
		return "", 0, err
	}

	return dlqweb.User(name), p.roles.of(name), nil
}

// check compares a password. bcrypt takes its time, so a right one is remembered: a user who has
// signed in waits for nobody, and no limit holds for him.
func (p *passwords) check(address, name, password string) error {
	mac := hmac.New(sha256.New, p.key)
	_, _ = fmt.Fprintf(mac, "%d:%s%s", len(name), name, password)
	sum := [sha256.Size]byte(mac.Sum(nil))
	p.mu.Lock()
	if known, there := p.known[name]; there && known == sum {
		p.mu.Unlock()
		return nil
	}
	if other := p.checking[sum]; other != nil {
		p.mu.Unlock()
		<-other.done // within longestWait and the time of a hash
		return other.err
	}
	c := &check{done: make(chan struct{})}
	p.checking[sum] = c
	p.mu.Unlock()

	right := false
	right, c.err = p.try(address, name, password)
	p.mu.Lock()
	if right {
		p.known[name] = sum
	}
	delete(p.checking, sum)
	p.mu.Unlock()
	close(c.done)

	return c.err
}

// try checks a password within the limits.
func (p *passwords) try(address, name, password string) (bool, error) {
	byAddress, byName := "address "+group(address), "user "+cut(name)
	if err := p.failures.begin(byAddress, byName); err != nil {
		return false, err
	}
	right, compared := p.compare(name, password)
	switch {
	case !compared:
		p.failures.takeBack(byAddress)
		p.failures.takeBack(byName)
		return false, &delayError{time.Second}
	case right:
		p.failures.takeBack(byAddress)
		p.failures.reset(byName)
		p.tried(address, cut(name), true)
		return true, nil
	default:
		p.tried(address, cut(name), false)
		return false, dlqweb.ErrUnauthenticated
	}
}

// compare compares a password with the hash of its user, one at a time. It gives up when too many
// wait.
func (p *passwords) compare(name, password string) (right, compared bool) {
	select {
	case p.waiting <- struct{}{}:
	default:
		return false, false
	}
	timer := time.NewTimer(longestWait)
	defer timer.Stop()
	select {
	case p.hashing <- struct{}{}:
		<-p.waiting
	case <-timer.C:
		<-p.waiting
		return false, false
	}
	defer func() { <-p.hashing }()

	hash, there := p.users[name]
	if !there {
		_ = p.hashesTo(p.decoys[p.highest], []byte(password))
		return false, true
	}
	right = p.hashesTo(hash, []byte(password)) == nil
	cost, _ := bcrypt.Cost(hash)
	for ; cost < p.highest; cost++ { // each step of the cost doubles the time: together they take that of the highest
		_ = p.hashesTo(p.decoys[cost], []byte(password))
	}

	return right, true
}

// clientOf is the address of the client, or of the reverse proxy before it.
func clientOf(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}

	return peer.Addr().Unmap().WithZone("").String()
}

// group is what has one count: an IPv4 address, or a /64 of IPv6, which is what one client has at
// least.
func group(address string) string {
	parsed, err := netip.ParseAddr(address)
	if err != nil || parsed.Is4() {
		return address
	}
	prefix, _ := parsed.Prefix(64)

	return prefix.String()
}

// cut bounds a name that a client has sent.
func cut(name string) string {
	if len(name) > mostName {
		return name[:mostName] + "…"
	}

	return name
}

// signIns writes sign-ins to the audit log, and failed ones to the log as well. A guesser fills
// neither.
type signIns struct {
	audit slog.Handler
	log   *slog.Logger
	limit *rate.Limiter

	mu      sync.Mutex
	skipped int
}

func newSignIns(log *slog.Logger) *signIns {
	const burst = 30
	return &signIns{log: log, limit: rate.NewLimiter(1, burst)}
}

func (s *signIns) tried(address, user string, right bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.limit.Allow() {
		s.skipped++
		return
	}
	attributes := []slog.Attr{slog.String("action", "sign-in"), slog.String("user", user),
		slog.String("address", address), slog.String("outcome", map[bool]string{true: "done", false: "refused"}[right])}
	if s.skipped > 0 {
		attributes = append(attributes, slog.Int("not_recorded", s.skipped))
		s.skipped = 0
	}
	record := slog.NewRecord(time.Now(), slog.LevelInfo, "dead letters: sign-in", 0)
	record.AddAttrs(attributes...)
	if err := s.audit.Handle(context.Background(), record); err != nil {
		s.log.Error("Cannot write to the audit log", "error", err, "action", "sign-in")
	}
	if !right {
		s.log.LogAttrs(context.Background(), slog.LevelWarn, "Refused a sign-in: wrong name or password",
			attributes[1:]...)
	}
}
