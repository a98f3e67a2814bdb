package cli

import (
	"fmt"

	"github.com/fatih/color"
	"github.com/spf13/cobra"
)

// The values of --color.
const (
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

// Style is how a text looks where there are colours.
type Style int

// The styles, by what they say.
const (
	Heading Style = iota
	Bad
	Warn
	Minor
)

// painted makes each style; none of them asks the environment by itself.
var painted = map[Style]*color.Color{
	Heading: color.New(color.Bold), Bad: color.New(color.FgRed, color.Bold), Warn: color.New(color.FgYellow),
	Minor: color.New(color.Faint),
}

// Paint gives a text that is to go to Out its style, where Out has colours. The text must be safe
// already.
func (s *Session) Paint(style Style, text string) string {
	return s.paint(s.OutIsTerminal, style, text)
}

// PaintErr is [Session.Paint] for Err.
func (s *Session) PaintErr(style Style, text string) string {
	return s.paint(s.ErrIsTerminal, style, text)
}

func (s *Session) paint(terminal bool, style Style, text string) string {
	plain := s.color == colorNever || s.JSON ||
		s.color != colorAlways && (!terminal || s.Getenv("NO_COLOR") != "" || s.Getenv("TERM") == "dumb")
	if plain {
		return text
	}
	c := *painted[style]
	c.EnableColor()

	return c.Sprint(text)
}

// colorFlag adds --color.
func (s *Session) colorFlag(cmd *cobra.Command) {
	s.color = colorAuto
	cmd.PersistentFlags().Var((*colorValue)(&s.color), "color",
		"auto, always or never; auto colors terminals, unless NO_COLOR is set")
	_ = cmd.RegisterFlagCompletionFunc("color", cobra.FixedCompletions([]string{colorAuto, colorAlways, colorNever},
		cobra.ShellCompDirectiveNoFileComp))
}

// colorValue is the value of --color.
type colorValue string

func (v *colorValue) Set(text string) error {
	switch text {
	case colorAuto, colorAlways, colorNever:
		*v = colorValue(text)
		return nil
	default:
		return fmt.Errorf("wanted auto, always or never, got %q", text)
	}
}

func (v *colorValue) String() string { return string(*v) }
func (v *colorValue) Type() string   { return "when" }
