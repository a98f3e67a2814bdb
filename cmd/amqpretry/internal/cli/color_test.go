package cli

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
)

func TestColors(t *testing.T) {
	const bold, end = "\x1b[1m", "\x1b[22m"
	for name, test := range map[string]struct {
		terminal bool
		environ  map[string]string
		args     []string
		colours  bool
	}{
		"a terminal":                 {terminal: true, colours: true},
		"a pipe":                     {},
		"NO_COLOR":                   {terminal: true, environ: map[string]string{"NO_COLOR": "1"}},
		"an empty NO_COLOR":          {terminal: true, environ: map[string]string{"NO_COLOR": ""}, colours: true},
		"a terminal that knows none": {terminal: true, environ: map[string]string{"TERM": "dumb"}},
		"never":                      {terminal: true, args: []string{"--color", "never"}},
		"always, through a pipe":     {args: []string{"--color=always"}, colours: true},
		"always wins over NO_COLOR": {
			environ: map[string]string{"NO_COLOR": "1"}, args: []string{"--color=always"}, colours: true,
		},
		"JSON is for programs, not people": {terminal: true, args: []string{"--json"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(test.environ)
			w.OutIsTerminal, w.ErrIsTerminal, w.Width = test.terminal, test.terminal, 12
			code := w.run(t, command(func(s *Session, _ *cobra.Command, _ []string) error {
				return s.Table([]string{"queue", "messages"}, [][]string{{"a\x1b[2Jb", "1"}})
			}), append([]string{"do"}, test.args...)...)
			assert.Equal(t, ExitOK, code)
			head := "QUEUE      …"
			if test.colours {
				head = bold + head + end
			}
			assert.Equal(t, head+"\na\\x1b[2Jb  1\n", w.out.String(),
				"as wide as without, and control characters stay escaped")
		})
	}

	w := newWorld(nil)
	w.ErrIsTerminal = true
	assert.Equal(t, ExitUsage, w.run(t, command(nothing), "do", "--color", "sometimes"))
	assert.Contains(t, w.err.String(), `wanted auto, always or never, got "sometimes"`)
	assert.Contains(t, w.err.String(), "\x1b[31;1mamqpretry:", "errors are red on a terminal")
}
