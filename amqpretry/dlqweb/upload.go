package dlqweb

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	// leastRead is how much of a request's body must come in each readTime, unless it ends before.
	leastRead = 64 << 10
	readTime  = 30 * time.Second
	// mostUploads is how many bodies are read at a time, of all and of one user, and uploadWait how
	// long another one waits for its turn.
	mostUploads       = 8
	mostUploadsOfUser = 2
	uploadWait        = 2 * time.Second
)

// uploads are the bodies that are read now.
type uploads struct {
	mu     sync.Mutex
	all    int
	ofUser map[User]int
	freed  chan struct{} // closed when one has ended
}

// begin waits for a turn.
func (u *uploads) begin(ctx context.Context, user User) error {
	timer := time.NewTimer(uploadWait)
	defer timer.Stop()
	for {
		freed := u.tryBegin(user)
		if freed == nil {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return &problem{Status: http.StatusTooManyRequests, Title: "Too many requests are being sent",
				Detail: "The console reads few at a time.", Do: "Try again when your other uploads have ended."}
		}
	}
}

// tryBegin returns what to wait for; nil when the body can be read.
func (u *uploads) tryBegin(user User) <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all < mostUploads && u.ofUser[user] < mostUploadsOfUser {
		u.all++
		u.ofUser[user]++
		return nil
	}

	return u.freed
}

func (u *uploads) end(user User) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all--
	if u.ofUser[user]--; u.ofUser[user] == 0 {
		delete(u.ofUser, user)
	}
	close(u.freed)
	u.freed = make(chan struct{})
}

// body is the body of a request. It takes a turn with its first read, and its deadline moves as
// long as enough data comes. A server that cannot set deadlines has limits of its own.
type body struct {
	io.ReadCloser
	uploads    *uploads
	controller *http.ResponseController
	ctx        context.Context
	user       User

	begun, reading bool
	read           int // since the deadline was set
}

// newBody returns nil for a request without a body. It sets the first deadline, also for a body
// that nobody reads: the server reads it then.
func (c *Console) newBody(w http.ResponseWriter, r *http.Request) *body {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	b := &body{ReadCloser: r.Body, uploads: &c.uploads, controller: http.NewResponseController(w), ctx: r.Context()}
	b.extend()

	return b
}

func (b *body) extend() {
	b.read = 0
	_ = b.controller.SetReadDeadline(time.Now().Add(readTime))
}

func (b *body) Read(p []byte) (int, error) {
	if !b.begun {
		if err := b.uploads.begin(b.ctx, b.user); err != nil {
			// Before it answers, the server reads the rest, or what comes of it.
			_ = b.controller.SetReadDeadline(time.Now().Add(uploadWait))
			return 0, err
		}
		b.begun, b.reading = true, true
		b.extend()
	}
	n, err := b.ReadCloser.Read(p)
	if b.read += n; b.read >= leastRead {
		b.extend()
	}
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF:
		_ = b.controller.SetReadDeadline(time.Time{}) // else the server takes the client for gone
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = &problem{Status: http.StatusRequestTimeout, Title: "The request came too slowly",
			Detail: "The console waits 30 seconds for the next 64 KiB, or for the end."}
	}
	b.end()

	return n, err
}

// end lets others have the turn.
func (b *body) end() {
	if b != nil && b.reading {
		b.reading = false
		b.uploads.end(b.user)
	}
}

// bound says whose body it is, and how large it may be.
func bound(w http.ResponseWriter, r *http.Request, who visitor) {
	if b, is := r.Body.(*body); is {
		b.user = who.User
	}
	r.Body = http.MaxBytesReader(w, r.Body, mostUpload)
}
