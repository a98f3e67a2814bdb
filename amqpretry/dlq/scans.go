package dlq

import (
	"context"
	"errors"
	"sync"
	"time"
)

// scans are those of a client that hold messages, or may. They end before the client closes its
// connections: the broker takes back what a closed connection held, in any order.
type scans struct {
	client context.Context // ends when the client is closed
	end    context.CancelCauseFunc

	mu       sync.Mutex
	open     int // their owners have not released them yet
	released int // give their messages back
}

var errClosed = errors.New("the client was closed")

func newScans() *scans {
	client, end := context.WithCancelCause(context.Background())
	return &scans{client: client, end: end}
}

// enter counts one more scan. Its context ends with ctx and with the client. release is called when
// the owner of the scan has done with it, and what that returns when the messages are back.
func (s *scans) enter(ctx context.Context) (_ context.Context, release func() (left func()), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := context.Cause(s.client); err != nil {
		return nil, nil, err
	}
	s.open++
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.client, func() { cancel(errClosed) })

	return ctx, func() func() {
		s.count(-1, 1)
		return func() {
			s.count(0, -1)
			stop()
			cancel(nil)
		}
	}, nil
}

func (s *scans) count(open, released int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open += open
	s.released += released
}

// close ends all scans, and waits for those that give messages back: they have a limit of their
// own. The others have that long to begin: the loop of a caller may never go on.
func (s *scans) close() {
	s.end(errClosed)
	for began := time.Now(); s.holdMessages(time.Since(began) < settleLimit+closeTimeout); {
		<-time.After(10 * time.Millisecond)
	}
}

func (s *scans) holdMessages(withOpen bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.released > 0 || withOpen && s.open > 0
}
