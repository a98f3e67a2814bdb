package dlqweb

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/amqpretry/watermill-retry/internal/file"
)

// A parked cause stands at the end of the causes, with a note. Its messages stay where they are.

// parked is why a cause is parked.
type parked struct {
	Note string    `json:"note"`
	By   User      `json:"by"`
	At   time.Time `json:"at"`
}

const (
	// mostNote is how many bytes a note may have, mostParked how many causes may be parked.
	mostNote   = 500
	mostParked = 1000
	fileParked = "parked.json"
)

// parks stores parked causes by queue and fingerprint, in the folder of the runs. Without a folder
// it stores none.
type parks struct {
	path string
	mu   sync.Mutex
	all  map[string]map[string]parked
}

func openParks(folder string) (*parks, error) {
	p := &parks{all: map[string]map[string]parked{}}
	if folder == "" {
		return p, nil
	}
	p.path = filepath.Join(folder, fileParked)
	text, err := os.ReadFile(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &p.all)
	}
	if p.all == nil { // of the text null
		p.all = map[string]map[string]parked{}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the parked causes in %s: %w; repair the file, or remove it", p.path, err)
	}

	return p, nil
}

// of returns the parked causes of a queue by fingerprint.
func (p *parks) of(queue string) map[string]parked {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := map[string]parked{}
	for fingerprint, one := range p.all[queue] {
		found[fingerprint] = one
	}

	return found
}

// change parks a cause; a nil one ends that.
func (p *parks) change(queue, fingerprint string, one *parked) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, was := p.all[queue][fingerprint]
	set := func(one parked, is bool) {
		if !is {
			delete(p.all[queue], fingerprint)
			if len(p.all[queue]) == 0 {
				delete(p.all, queue)
			}
			return
		}
		if p.all[queue] == nil {
			p.all[queue] = map[string]parked{}
		}
		p.all[queue][fingerprint] = one
	}
	if one == nil {
		set(parked{}, false)
	} else {
		if !was && p.count() >= mostParked {
			return &problem{Status: http.StatusConflict, Title: "Too many causes are parked",
				Detail: "At most " + strconv.Itoa(mostParked) + " can be.", Do: "Unpark some of them."}
		}
		set(*one, true)
	}
	text, err := json.MarshalIndent(p.all, "", "  ")
	if err == nil {
		err = file.Replace(p.path, append(text, '\n'))
	}
	if err != nil {
		set(before, was)
		return noFolder(err)
	}

	return nil
}

func (p *parks) count() (n int) {
	for _, queue := range p.all {
		n += len(queue)
	}

	return n
}

// postPark parks a cause, or changes its note. An empty note unparks it.
func (c *Console) postPark(w http.ResponseWriter, r *http.Request, who visitor) error {
	if err := who.needs(RoleReplay); err != nil {
		return err
	}
	form, err := readForm(w, r)
	if err != nil {
		return err
	}
	t, err := c.targetOf(form)
	if err != nil {
		return err
	}
	fingerprint, note := form.Get("fingerprint"), strings.TrimSpace(form.Get("note"))
	if _, err := parseFilter(url.Values{"fingerprint": {fingerprint}}, who); err != nil {
		return err
	}
	if len(note) > mostNote || !utf8.ValidString(note) {
		return badRequest("note", "text of at most "+strconv.Itoa(mostNote)+" bytes", strconv.Itoa(len(note))+" bytes")
	}
	var one *parked
	action := actionUnpark
	if note != "" {
		one, action = &parked{Note: note, By: who.User, At: time.Now().UTC()}, actionPark
	}
	about := Run{wish: wish{Queue: t.Queue, Filter: url.Values{"fingerprint": {fingerprint}}}}
	if err := c.audit(r.Context(), who, action, about); err != nil {
		return err
	}
	if err := c.parks.change(t.Queue, fingerprint, one); err != nil {
		return err
	}
	w.Header().Set("Location", "queue?"+url.Values{"queue": {t.Queue}}.Encode())
	w.WriteHeader(http.StatusSeeOther)

	return nil
}

// park notes which causes are parked, and puts these at the end.
func (p *queuePage) park(all map[string]parked) {
	for i := range p.Causes {
		if one, is := all[p.Causes[i].ID]; is {
			if p.Closed {
				one.Note = ""
			}
			p.Causes[i].Parked = &one
		}
	}
	slices.SortStableFunc(p.Causes, func(a, b causeRow) int { return rank(a.Parked == nil) - rank(b.Parked == nil) })
}
