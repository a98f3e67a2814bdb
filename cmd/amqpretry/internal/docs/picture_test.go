package docs

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The pictures show what the page says.
func TestPictures(t *testing.T) {
	if update {
		t.Skip("they are drawn by TestCommandLine_OwnBroker")
	}
	drawn := pictures(read(t, filepath.Join(docs, "reference/command-line/README.md")))
	require.NotEmpty(t, drawn)
	for name, wanted := range drawn {
		found, err := os.ReadFile(filepath.Join(docs, name))
		require.NoError(t, err)
		assert.Equal(t, wanted, string(found), "%s: UPDATE=yes draws it anew", name)
	}
}

// pictures draws each console block that is to have one, up to the next thing that the page has.
func pictures(p page) map[string]string {
	drawn := map[string]string{}
	name, end := "", 0
	var session []command
	flush := func() {
		if name != "" {
			drawn[name] = draw(session)
		}
		name, session = "", nil
	}
	for _, s := range p.steps {
		switch {
		case s.picture != "":
			flush()
			name = s.picture
		case name != "" && s.command != nil && (len(session) == 0 || s.command.from == end+1):
			session, end = append(session, *s.command), s.command.to
		default:
			flush()
		}
	}
	flush()

	return drawn
}

// A terminal of so many columns; sizes in pixels.
const (
	columns   = 108
	charWidth = 7.8
	wide      = 843 + 2*margin
	lineHigh  = 18
	margin    = 18
	titleHigh = 34
)

const head = `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" role="img" aria-label="%[3]s">
<style>
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace; fill: #d7dde4; white-space: pre }
  .head { fill: #8b98a8 } .prompt { fill: #6cc28b } .typed { fill: #ffffff; font-weight: 600 } .title { fill: #8b98a8 }
</style>
<rect x="0.5" y="0.5" width="%[4]d" height="%[5]d" rx="8" fill="#161b22" stroke="#3d4652"/>
<circle cx="20" cy="18" r="5.5" fill="#e5695e"/><circle cx="38" cy="18" r="5.5" fill="#e0b341"/><circle cx="56" cy="18" r="5.5" fill="#5fb760"/>
`

// draw makes an SVG that looks the same on a light and on a dark page.
func draw(session []command) string {
	var body strings.Builder
	y, lines := titleHigh+lineHigh, 0
	print := func(class, prompt, text string) {
		for i, part := range wrap(text, columns-len(prompt)) {
			x := float64(margin)
			if prompt != "" {
				if i == 0 {
					fmt.Fprintf(&body, "<text x=\"%.1f\" y=\"%d\" class=\"prompt\">%s</text>\n", x, y, prompt)
				}
				x += charWidth * float64(len(prompt))
			}
			// Columns begin where they should in every font: each run of text that two spaces end
			// has a place of its own.
			for _, run := range runs(part) {
				fmt.Fprintf(&body, "<text x=\"%.1f\" y=\"%d\" textLength=\"%.1f\" class=\"%s\">%s</text>\n",
					x+charWidth*float64(run.at), y, charWidth*float64(len([]rune(run.text))), class,
					html.EscapeString(run.text))
			}
			y += lineHigh
			lines++
		}
	}
	for i, c := range session {
		if i > 0 {
			y += lineHigh / 2
		}
		print("typed", "$ ", c.line)
		for line := range strings.SplitSeq(c.output, "\n") {
			class := "out"
			if strings.ToUpper(line) == line && strings.ContainsAny(line, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
				class = "head"
			}
			print(class, "", line)
		}
	}

	width, height := wide, y+margin-lineHigh/2
	label := html.EscapeString("A terminal: " + session[0].line)

	return fmt.Sprintf(head, width, height, label, width-1, height-1) + body.String() + "</svg>\n"
}

// run is a piece of a line and its column.
type run struct {
	at   int
	text string
}

func runs(line string) []run {
	var all []run
	deadLetters := []rune(line)
	for at := 0; at < len(deadLetters); {
		if deadLetters[at] == ' ' {
			at++
			continue
		}
		end := at
		for end < len(deadLetters) && (deadLetters[end] != ' ' || end+1 < len(deadLetters) &&
			deadLetters[end+1] != ' ') {
			end++
		}
		all = append(all, run{at, string(deadLetters[at:end])})
		at = end
	}

	return all
}

// wrap breaks a line as a terminal does.
func wrap(line string, width int) []string {
	deadLetters := []rune(line)
	var parts []string
	for len(deadLetters) > width {
		parts = append(parts, string(deadLetters[:width]))
		deadLetters = deadLetters[width:]
	}

	return append(parts, string(deadLetters))
}
