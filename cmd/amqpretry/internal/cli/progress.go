package cli

import (
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Bar shows how far long work is, with rate and remaining time. The zero Bar shows nothing. It may
// be used by many goroutines.
type Bar struct {
	mu  sync.Mutex
	bar *progressbar.ProgressBar
}

// Progress begins a bar on Err. It draws only on a terminal, and not beside JSON. A total of 0 is
// one that is not known.
func (s *Session) Progress(title string, total int) *Bar {
	if !s.ErrIsTerminal || s.JSON {
		return &Bar{}
	}
	if total <= 0 {
		total = -1
	}

	return &Bar{bar: progressbar.NewOptions(total,
		progressbar.OptionSetWriter(s.Err),
		progressbar.OptionSetDescription(Safe(title)),
		progressbar.OptionSetWidth(24),
		progressbar.OptionSetSpinnerChangeInterval(0), // else it goes on drawing by itself, also after Close
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString("msg"),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(),
	)}
}

// Set says how much is done.
func (b *Bar) Set(done int) { b.with(func(bar *progressbar.ProgressBar) { _ = bar.Set(done) }) }

// SetTotal says how much there is to do.
func (b *Bar) SetTotal(total int) {
	b.with(func(bar *progressbar.ProgressBar) {
		if total > 0 && bar.GetMax() != total {
			bar.ChangeMax(total)
		}
	})
}

// Close takes the bar off the screen. It can be called again.
func (b *Bar) Close() {
	b.with(func(bar *progressbar.ProgressBar) { _ = bar.Clear() })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bar = nil
}

func (b *Bar) with(do func(*progressbar.ProgressBar)) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.bar != nil { // what cannot be drawn is no reason to stop
		do(b.bar)
	}
}
