// Dashboard-picture draws the panels of a Grafana dashboard as an SVG: with the dashboard's own
// titles, places, units and queries, and with what a running Prometheus answers to these. It knows
// as much of Grafana as middleware/metrics/dashboard.json needs: panels of the types stat and
// timeseries, and the units short, ops, s and percentunit.
//
//	cd tools/dashboard-picture
//	go run . -prometheus http://127.0.0.1:9090 -last 20m -var job=shop -out ../../docs/img/dashboard.svg
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"log"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"
)

type dashboard struct {
	Title  string
	Panels []panel
}

type panel struct {
	Type, Title string
	GridPos     struct{ X, Y, W, H float64 }
	FieldConfig struct {
		Defaults struct {
			Unit       string
			NoValue    string
			Thresholds struct {
				Steps []struct {
					Color string
					Value *float64
				}
			}
		}
	}
	Targets []struct{ Expr, LegendFormat string }
}

// line is one series of a panel.
type line struct {
	name   string
	points []point
}

type point struct {
	at    float64 // seconds since 1970
	value float64
}

type variables map[string]string

func (v variables) String() string { return "" }
func (v variables) Set(s string) error {
	name, value, ok := strings.Cut(s, "=")
	if !ok {
		return fmt.Errorf("wanted NAME=VALUE, got %q", s)
	}
	v[name] = value

	return nil
}

func main() {
	vars := variables{"job": ".*", "topic": ".*", "__rate_interval": "1m"}
	file := flag.String("dashboard", "../../middleware/metrics/dashboard.json", "the dashboard")
	server := flag.String("prometheus", "http://127.0.0.1:9090", "address of Prometheus")
	last := flag.Duration("last", 20*time.Minute, "time range")
	until := flag.String("until", "", "end of the time range, RFC 3339; now by default")
	step := flag.Duration("step", 10*time.Second, "between two points")
	out := flag.String("out", "dashboard.svg", "where to write")
	flag.Var(vars, "var", "NAME=VALUE: a variable of the dashboard, .* by default; may be repeated")
	flag.Parse()

	to := time.Now()
	if *until != "" {
		var err error
		if to, err = time.Parse(time.RFC3339, *until); err != nil {
			log.Fatal(err)
		}
	}
	text, err := os.ReadFile(*file)
	if err != nil {
		log.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		log.Fatal(err)
	}
	vars["__range"] = fmt.Sprintf("%ds", int(last.Seconds()))

	p := prometheus{server: *server, from: to.Add(-*last), to: to, step: *step, vars: vars}
	svg, err := draw(d, p)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(*out), 0o755); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*out, []byte(svg), 0o644); err != nil {
		log.Fatal(err)
	}
}

// ---- questions to Prometheus
// ------------------------------------------------------------------------------------

type prometheus struct {
	server   string
	from, to time.Time
	step     time.Duration
	vars     variables
}

func (p prometheus) lines(expr, legend string, instant bool) ([]line, error) {
	for name, value := range p.vars {
		expr = strings.ReplaceAll(expr, "$"+name, value)
	}
	query := url.Values{"query": {expr}}
	path := "/api/v1/query_range"
	if instant {
		path = "/api/v1/query"
		query.Set("time", seconds(p.to))
	} else {
		query.Set("start", seconds(p.from))
		query.Set("end", seconds(p.to))
		query.Set("step", fmt.Sprint(p.step.Seconds()))
	}

	response, err := http.Get(p.server + path + "?" + query.Encode())
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  []any
				Values [][]any
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}

	var lines []line
	for _, r := range answer.Data.Result {
		l := line{name: regexp.MustCompile(`{{\s*(\w+)\s*}}`).ReplaceAllStringFunc(legend, func(use string) string {
			return r.Metric[strings.Trim(use, "{} ")]
		})}
		if r.Value != nil {
			r.Values = [][]any{r.Value}
		}
		for _, v := range r.Values {
			value, err := strconv.ParseFloat(v[1].(string), 64)
			if err == nil && !math.IsNaN(value) && !math.IsInf(value, 0) {
				l.points = append(l.points, point{v[0].(float64), value})
			}
		}
		lines = append(lines, l)
	}
	sort.SliceStable(lines, func(i, j int) bool { return lines[i].name < lines[j].name })

	return lines, nil
}

func seconds(t time.Time) string { return fmt.Sprintf("%.3f", float64(t.UnixMilli())/1000) }

// ---- drawing
// ----------------------------------------------------------------------------------------------------

const (
	column, row = 1320 / 24., 32. // of Grafana's grid, in pixels
	header      = 40.
	gap         = 4.
)

// Grafana's classic palette.
var palette = []string{"#56a64b", "#f2cc0c", "#3274d9", "#ff780a", "#e02f44", "#8f3bb8", "#1f78c1", "#ba43a9",
	"#508642", "#cca300"}

var colors = map[string]string{"green": "#56a64b", "red": "#e02f44", "orange": "#ff780a", "blue": "#3274d9"}

func draw(d dashboard, p prometheus) (string, error) {
	bottom := 0.
	for _, panel := range d.Panels {
		bottom = max(bottom, panel.GridPos.Y+panel.GridPos.H)
	}
	width, height := 24*column, header+bottom*row

	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" font-family="Helvetica,Arial,DejaVu Sans,sans-serif" font-size="11">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&b,
		`<rect width="100%%" height="100%%" fill="#f4f5f5"/><text x="10" y="26" font-size="18" fill="#24292e">%s</text>`+"\n", html.EscapeString(d.Title))
	fmt.Fprintf(&b, `<text x="%.0f" y="26" text-anchor="end" fill="#6e7680">%s to %s UTC</text>`+"\n", width-10,
		p.from.UTC().Format("2006-01-02 15:04:05"), p.to.UTC().Format("15:04:05"))

	for _, panel := range d.Panels {
		var lines []line
		for _, t := range panel.Targets {
			found, err := p.lines(t.Expr, t.LegendFormat, panel.Type == "stat")
			if err != nil {
				return "", err
			}
			lines = append(lines, found...)
		}

		g := panel.GridPos
		x, y, w, h := g.X*column+gap, header+g.Y*row+gap, g.W*column-2*gap, g.H*row-2*gap
		fmt.Fprintf(&b,
			`<g transform="translate(%.1f %.1f)"><rect width="%.1f" height="%.1f" rx="2" fill="#fff" stroke="#dcdee0"/>`+"\n", x, y, w, h)
		fmt.Fprintf(&b, `<text x="8" y="18" font-size="13" fill="#24292e">%s</text>`+"\n",
			html.EscapeString(panel.Title))
		if panel.Type == "stat" {
			stat(&b, panel, lines, w, h)
		} else {
			chart(&b, panel, lines, w, h, p)
		}
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")

	return b.String(), nil
}

func stat(b *strings.Builder, p panel, lines []line, w, h float64) {
	defaults := p.FieldConfig.Defaults
	text, color := defaults.NoValue, colors["green"]
	if len(lines) > 0 && len(lines[0].points) > 0 {
		value := lines[0].points[0].value
		text = format(defaults.Unit, value)
		for _, s := range defaults.Thresholds.Steps {
			if s.Value == nil || value >= *s.Value {
				color = colors[s.Color]
			}
		}
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" font-size="36" text-anchor="middle" fill="%s">%s</text>`+"\n", w/2, h/2+24,
		color, html.EscapeString(text))
}

func chart(b *strings.Builder, p panel, lines []line, w, h float64, times prometheus) {
	const left, right, top, under = 50., 12., 30., 40.
	unit := p.FieldConfig.Defaults.Unit

	highest := 0.
	for _, l := range lines {
		for _, at := range l.points {
			highest = max(highest, at.value)
		}
	}
	each := nice(highest / 4)
	limit := each * math.Max(1, math.Ceil(highest/each))

	from, to := float64(times.from.Unix()), float64(times.to.Unix())
	px := func(at float64) float64 { return left + (at-from)/(to-from)*(w-left-right) }
	py := func(v float64) float64 { return h - under - v/limit*(h-under-top) }

	for v := 0.; v <= limit*1.001; v += each {
		fmt.Fprintf(b,
			`<path d="M%.0f %.1fH%.1f" stroke="#e9edf2"/><text x="%.0f" y="%.1f" text-anchor="end" fill="#6e7680">%s</text>`+"\n",
			left, py(v), w-right, left-5, py(v)+4, html.EscapeString(format(unit, v)))
	}
	for at := math.Ceil(from/300) * 300; at <= to; at += 300 {
		fmt.Fprintf(b,
			`<path d="M%.1f %.0fV%.1f" stroke="#e9edf2"/><text x="%.1f" y="%.1f" text-anchor="middle" fill="#6e7680">%s</text>`+"\n",
			px(at), top, h-under, px(at), h-under+14, time.Unix(int64(at), 0).UTC().Format("15:04"))
	}

	if len(lines) == 0 {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle" fill="#6e7680">No data</text>`+"\n", w/2, h/2)
	}
	legend := 8.
	for i, l := range lines {
		color := palette[i%len(palette)]
		var path strings.Builder
		before := math.Inf(-1)
		for _, at := range l.points {
			command := "L"
			if at.at-before > 1.5*times.step.Seconds() { // a gap is shown as one
				command = "M"
			}
			before = at.at
			fmt.Fprintf(&path, "%s%.1f %.1f", command, px(at.at), py(at.value))
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.5" stroke-linejoin="round"/>`+"\n",
			path.String(), color)
		fmt.Fprintf(b,
			`<path d="M%.1f %.1fh12" stroke="%s" stroke-width="3"/><text x="%.1f" y="%.1f" fill="#24292e">%s</text>`+
				"\n",
			legend, h-11, color, legend+16, h-7, html.EscapeString(l.name))
		legend += 28 + 5.8*float64(len(l.name))
	}
}

// nice rounds up to 1, 2 or 5 times a power of ten.
func nice(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if v <= m*power*1.0001 {
			return m * power
		}
	}

	return 10 * power
}

func format(unit string, v float64) string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	switch {
	case unit == "percentunit":
		return number(100*v) + "%"
	case unit == "s" && v > 0 && v < .9995:
		return number(1000*v) + " ms"
	case unit == "s":
		return number(v) + " s"
	case unit == "ops":
		return number(v) + "/s"
	case v >= 1000:
		return number(v/1000) + " K"
	default:
		return number(v)
	}
}
