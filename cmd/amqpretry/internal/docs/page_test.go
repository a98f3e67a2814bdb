package docs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// page is a Markdown file as the test goes through it, from top to bottom.
type page struct {
	lines []string
	steps []step
}

// step is one thing of a page that the test does. One of these is set.
type step struct {
	command *command
	// fixture is what is needed from here on, and told to the test only: <!-- test: NAME -->.
	fixture string
	// file that the page shows: <!-- file: NAME --> and a fenced block.
	file, content string
	// picture of the console block that follows: <!-- picture: NAME -->.
	picture string
}

// command is a line of a console block with what it prints.
type command struct {
	line   string
	output string
	exit   int
	// from and to are the lines of the page that the output takes, the exit code included.
	from, to int
}

var (
	comment  = regexp.MustCompile(`^<!-- (test|file|picture): (.*) -->$`)
	exitCode = regexp.MustCompile(`^# exit (\d+)$`)
)

func parse(text string) (page, error) {
	p := page{lines: strings.Split(text, "\n")}
	fence, file := "", ""
	var content []string
	var c *command
	end := func(at int) {
		if c == nil {
			return
		}
		c.to = at
		output := p.lines[c.from:at]
		if n := len(output); n > 0 {
			if m := exitCode.FindStringSubmatch(output[n-1]); m != nil {
				c.exit, _ = strconv.Atoi(m[1])
				output = output[:n-1]
			}
		}
		c.output = strings.Join(output, "\n")
		c = nil
	}

	for i, line := range p.lines {
		switch language, isFence := strings.CutPrefix(line, "```"); {
		case isFence && fence == "":
			fence, content = "```"+language, nil
		case isFence:
			end(i)
			if file != "" {
				p.steps = append(p.steps, step{file: file, content: strings.Join(content, "\n") + "\n"})
			}
			fence, file = "", ""
		case fence == "```console":
			if text, ok := strings.CutPrefix(line, "$ "); ok {
				end(i)
				c = &command{line: text, from: i + 1}
				p.steps = append(p.steps, step{command: c})
			} else if c == nil {
				return p, fmt.Errorf("line %d: a console block begins with a command", i+1)
			}
		case fence != "":
			content = append(content, line)
		default:
			m := comment.FindStringSubmatch(line)
			switch {
			case m == nil:
			case m[1] == "file":
				file = m[2]
			case m[1] == "test":
				p.steps = append(p.steps, step{fixture: m[2]})
			default:
				p.steps = append(p.steps, step{picture: m[2]})
			}
		}
	}
	if fence != "" {
		return p, fmt.Errorf("a block %s has no end", fence)
	}

	return p, nil
}

// with is the page with other outputs: a command that is not in them keeps its own.
func (p page) with(outputs map[*command]string) string {
	var out []string
	at := 0
	for _, s := range p.steps {
		if s.command == nil {
			continue
		}
		output, ok := outputs[s.command]
		if !ok {
			continue
		}
		out = append(out, p.lines[at:s.command.from]...)
		if output != "" {
			out = append(out, strings.Split(output, "\n")...)
		}
		at = s.command.to
	}

	return strings.Join(append(out, p.lines[at:]...), "\n")
}
