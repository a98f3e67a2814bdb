package dlqweb

import (
	"fmt"
	"html/template"
	"strings"

	"github.com/amqpretry/watermill-retry/internal/units"
)

// The life of a main queue as a picture: main queue, retry queues, dead-letter queue, with what
// lies in each.
const (
	lifeWidth    = 640
	boxWidth     = 168
	boxHeight    = 44
	boxGap       = 10
	mostBoxes    = 6
	lifeMargin   = 4
	mostBoxName  = 21
	leftColumn   = lifeMargin
	middleColumn = (lifeWidth - boxWidth) / 2
	rightColumn  = lifeWidth - boxWidth - lifeMargin
)

// life draws it.
func (q queueState) Life() template.HTML {
	boxes := q.Retry
	more := 0
	if len(boxes) > mostBoxes {
		more = len(boxes) - mostBoxes + 1
		boxes = boxes[:mostBoxes-1]
	}
	rows := max(1, len(boxes)+min(more, 1))
	height := rows*(boxHeight+boxGap) - boxGap + 2*lifeMargin
	middle := (height - boxHeight) / 2

	var d drawing
	d.printf(`<svg class="life" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`,
		lifeWidth, height, lifeWidth, height, template.HTMLEscapeString(q.lifeText()))
	var main *int64
	if q.Main != nil {
		main = q.Main.Messages
	}
	rowOf := func(i int) int {
		return lifeMargin + i*(boxHeight+boxGap) + (height-2*lifeMargin-rows*(boxHeight+boxGap)+boxGap)/2
	}
	for i := range rows {
		if len(boxes) == 0 {
			break
		}
		d.arrow(leftColumn+boxWidth, middle+boxHeight/2, middleColumn, rowOf(i)+boxHeight/2)
	}
	if len(boxes) == 0 {
		d.arrow(leftColumn+boxWidth, middle+boxHeight/2, rightColumn, middle+boxHeight/2)
	} else {
		d.arrow(middleColumn+boxWidth, middle+boxHeight/2, rightColumn, middle+boxHeight/2)
	}
	d.box(leftColumn, middle, "main", q.MainQueue, main)
	for i, retry := range boxes {
		d.box(middleColumn, rowOf(i), "wait", "wait "+retry.Delay, retry.Messages)
	}
	if more > 0 {
		d.box(middleColumn, rowOf(len(boxes)), "wait", fmt.Sprintf("%d more delays", more), sum(q.Retry[len(boxes):]))
	}
	d.box(rightColumn, middle, "dead", q.Queue, q.Messages)
	d.printf(`</svg>`)

	return template.HTML(d.String()) //nolint:gosec // every text in it is escaped
}

// lifeText says the same in words.
func (q queueState) lifeText() string {
	var words []string
	if q.Main != nil {
		words = append(words, fmt.Sprintf("%s: %s", q.MainQueue, depth(q.Main.Messages)))
	}
	for _, retry := range q.Retry {
		words = append(words, fmt.Sprintf("waiting %s: %s", retry.Delay, depth(retry.Messages)))
	}
	words = append(words, fmt.Sprintf("%s: %s", q.Queue, depth(q.Messages)))

	return strings.Join(words, "; ")
}

func sum(queues []retryState) *int64 {
	total := int64(0)
	for _, q := range queues {
		if q.Messages == nil {
			return nil
		}
		total += *q.Messages
	}

	return &total
}

func depth(n *int64) string {
	if n == nil {
		return "?"
	}

	return units.Thousands(*n)
}

type drawing struct{ strings.Builder }

func (d *drawing) printf(format string, values ...any) { _, _ = fmt.Fprintf(d, format, values...) }

func (d *drawing) box(x, y int, class, name string, messages *int64) {
	if messages != nil && *messages > 0 {
		class += " full"
	}
	d.printf(`<g class="%s"><rect x="%d" y="%d" width="%d" height="%d" rx="6"/>`, class, x, y, boxWidth, boxHeight)
	d.printf(`<text x="%d" y="%d" class="name">%s</text>`, x+10, y+18, template.HTMLEscapeString(short(name, mostBoxName)))
	d.printf(`<text x="%d" y="%d" class="depth">%s</text></g>`, x+10, y+36, depth(messages))
}

func (d *drawing) arrow(x1, y1, x2, y2 int) {
	half := (x1 + x2) / 2
	d.printf(`<path class="arrow" d="M%d %dC%d %d %d %d %d %d"/>`, x1, y1, half, y1, half, y2, x2, y2)
}

// short is a text of at most so many characters.
func short(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}

	return text
}
