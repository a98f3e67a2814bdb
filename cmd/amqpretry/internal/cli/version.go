package cli

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is what this program was built of.
type Version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
}

func (v Version) String() string {
	text := v.Version
	if v.Revision != "" {
		text += fmt.Sprintf(", revision %.12s", v.Revision)
	}
	if v.Time != "" {
		text += " of " + v.Time
	}
	if v.Modified {
		text += ", with changes"
	}

	return text + ", " + v.Go
}

func buildInfo() *debug.BuildInfo {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return &debug.BuildInfo{}
	}

	return info
}

func versionOf(info *debug.BuildInfo) Version {
	v := Version{Version: info.Main.Version, Go: info.GoVersion}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			v.Revision = setting.Value
		case "vcs.time":
			v.Time = setting.Value
		case "vcs.modified":
			v.Modified = setting.Value == "true"
		}
	}

	return v
}

func version(s *Session) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print the version of amqpretry, the revision of its source, and the version of Go that built it.

With --json: {"version", "revision", "time", "modified", "go"}.`,
		Example: "  amqpretry version\n  amqpretry version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionOf(buildInfo())
			if s.JSON {
				return s.PrintJSON(v)
			}
			_, err := fmt.Fprintf(s.Out, "amqpretry %s\n", v)

			return err
		},
	}
}
