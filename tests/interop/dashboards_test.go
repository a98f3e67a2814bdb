package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metricsql"
	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/alertrules"
	"github.com/amqpretry/watermill-retry/middleware/metrics"
	"github.com/amqpretry/watermill-retry/retry"
)

const metricsDir = "../../middleware/metrics/"

// registered is what can be asked for: the labels of each series with their values so far, as
// Prometheus stores them.
type registered map[string]map[string][]string

// closedLabels are those whose values are closed lists, all of which a Metrics begins with.
var closedLabels = []string{"outcome", "result", "reason", "connection", "role"}

// scrapeLabels are added by Prometheus.
var scrapeLabels = []string{"job", "instance"}

// register makes a Metrics, and has everything happen to it that makes a series.
func register(t *testing.T) registered {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	m, err := metrics.New(metrics.Config{Registerer: registry})
	require.NoError(t, err)

	about := retry.Event{At: time.Now(), Topic: "orders", Queue: "orders", Handler: "ship", Took: time.Second}
	for _, kind := range []retry.EventKind{retry.EventTopologyDeclared, retry.EventCall, retry.EventSucceeded} {
		e := about
		e.Kind = kind
		m.OnEvent(e)
	}
	for _, reason := range retry.Reasons() {
		e := about
		e.Kind, e.Verdict.Reason, e.Cause = retry.EventDeadLettered, reason, &retry.Cause{Reason: reason}
		m.OnEvent(e)
	}
	m.Watch(depths{})

	families, err := registry.Gather()
	require.NoError(t, err)
	found := registered{}
	for _, family := range families {
		labels := map[string][]string{}
		for _, metric := range family.GetMetric() {
			for _, l := range metric.GetLabel() {
				labels[l.GetName()] = append(labels[l.GetName()], l.GetValue())
			}
		}
		if family.GetMetric()[0].GetHistogram() == nil {
			found[family.GetName()] = labels
			continue
		}
		found[family.GetName()+"_sum"], found[family.GetName()+"_count"] = labels, labels
		withBuckets := maps.Clone(labels)
		for _, b := range family.GetMetric()[0].GetHistogram().GetBucket() {
			text := fmt.Sprint(b.GetUpperBound())
			withBuckets["le"] = append(withBuckets["le"], text, text+".0") // Prometheus 2 and 3
		}
		found[family.GetName()+"_bucket"] = withBuckets
	}
	require.NotEmpty(t, found)
	for _, name := range brokerSeries {
		found[name] = map[string][]string{"vhost": {"/"}, "queue": {"orders.landing"}}
	}

	return found
}

// brokerSeries are those of RabbitMQ's own plugin rabbitmq_prometheus, with the endpoints
// /metrics/per-object and /metrics/detailed, that alerts ask for.
var brokerSeries = []string{"rabbitmq_queue_messages", "rabbitmq_detailed_queue_messages"}

type depths struct{}

func (depths) QueueDepths(context.Context) ([]retry.QueueDepth, error) {
	return []retry.QueueDepth{
		{Queue: "orders.dlq", Role: retry.QueueRoleDeadLetter, MainQueue: "orders"},
		{Queue: "orders.retry.1s", Role: retry.QueueRoleRetry, MainQueue: "orders", Messages: 1, Wait: time.Second},
		{Queue: "ladder.30s", Role: retry.QueueRoleDelay, Messages: 1, Wait: 39900 * time.Millisecond},
		{Queue: "ladder.unroutable", Role: retry.QueueRoleUnroutable},
	}, nil
}

// check parses an expression and compares what it asks for with what is registered. It returns the
// labels that its result has, where they are named, and what is wrong.
func (r registered) check(expr string) (by []string, problems []string) {
	parsed, err := metricsql.Parse(expr)
	if err != nil {
		return nil, []string{err.Error()}
	}

	known := slices.Clone(scrapeLabels)
	asked := 0
	metricsql.VisitAll(parsed, func(e metricsql.Expr) {
		metric, ok := e.(*metricsql.MetricExpr)
		if !ok {
			return
		}
		asked++
		for _, filters := range metric.LabelFilterss {
			name := ""
			if len(filters) > 0 && filters[0].Label == "__name__" {
				name = filters[0].Value
			}
			labels, found := r[name]
			if !found {
				problems = append(problems, fmt.Sprintf("no series is called %q", name))
				continue
			}
			known = append(known, slices.Collect(maps.Keys(labels))...)
			for _, f := range filters[1:] {
				problems = append(problems, checkFilter(name, labels, f)...)
			}
		}
	})
	if asked == 0 {
		problems = append(problems, "it asks for no series")
	}

	modifier := func(m metricsql.ModifierExpr) {
		if m.Op == "by" {
			by = append(by, m.Args...)
		}
		for _, label := range m.Args {
			if !slices.Contains(known, label) {
				problems = append(problems, fmt.Sprintf("%s (%s): no series in it has this label", m.Op, label))
			}
		}
	}
	metricsql.VisitAll(parsed, func(e metricsql.Expr) {
		switch e := e.(type) {
		case *metricsql.AggrFuncExpr:
			modifier(e.Modifier)
		case *metricsql.BinaryOpExpr:
			modifier(e.GroupModifier)
			modifier(e.JoinModifier)
		case *metricsql.FuncExpr:
			if !promQLFunctions[e.Name] {
				problems = append(problems, fmt.Sprintf("%s is not known to be a function of Prometheus", e.Name))
			}
		}
	})

	return by, problems
}

// promQLFunctions are those in use: the parser knows more than Prometheus does.
var promQLFunctions = map[string]bool{"rate": true, "increase": true, "histogram_quantile": true, "round": true,
	"quantile_over_time": true, "max_over_time": true, "min_over_time": true, "resets": true}

func checkFilter(name string, labels map[string][]string, f metricsql.LabelFilter) (problems []string) {
	if slices.Contains(scrapeLabels, f.Label) {
		return nil
	}
	values, ok := labels[f.Label]
	if !ok {
		return []string{fmt.Sprintf("%s has no label %q", name, f.Label)}
	}
	if !slices.Contains(closedLabels, f.Label) && f.Label != "le" || f.Value == ".*" {
		return nil
	}

	wanted := []string{f.Value}
	if f.IsRegexp {
		wanted = strings.Split(f.Value, "|")
	}
	found := func(v string) bool { return slices.Contains(values, v) }
	if f.Label == "le" && !slices.ContainsFunc(wanted, found) || f.Label != "le" && !all(wanted, found) {
		return []string{fmt.Sprintf("%s: %s is never %q", name, f.Label, f.Value)}
	}

	return nil
}

func all(values []string, f func(string) bool) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return !f(v) })
}

// The check itself: everything that it is for must make it fail.
func TestSeriesCheck(t *testing.T) {
	t.Parallel()
	series := register(t)

	for expr, problem := range map[string]string{
		`amqpretry_dead_letters`:                                                  `no series is called "amqpretry_dead_letters"`,
		`amqpretry_recovery_duration_seconds`:                                     `no series is called "amqpretry_recovery_duration_seconds"`,
		`rate(amqpretry_dead_letters_total{handler="ship"}[5m])`:                  `has no label "handler"`,
		`sum by (handler) (amqpretry_dead_letters_total)`:                         `by (handler)`,
		`amqpretry_messages_total{result="dead_lettered"}`:                        `result is never "dead_lettered"`,
		`amqpretry_calls_total{outcome!~"succeeded|ok"}`:                          `outcome is never "succeeded|ok"`,
		`amqpretry_attempts_until_success_bucket{le="7"}`:                         `le is never "7"`,
		`amqpretry_held_deliveries / on (topic) amqpretry_topology_repairs_total`: `on (topic)`,
		`rate_over_sum(amqpretry_messages_total[5m])`:                             `not known to be a function`,
		`{job="shop"}`: `no series is called ""`,
		`1 + 1`:        `asks for no series`,
		`sum(`:         `unexpected`,
	} {
		_, problems := series.check(expr)
		assert.Contains(t, strings.Join(problems, "\n"), problem, expr)
	}
}

func TestAlertRules(t *testing.T) {
	t.Parallel()
	series := register(t)

	var names []string
	fired := playedAlerts(t, series)
	for _, rule := range alertrules.Read(t, metricsDir+"alerts.yaml") {
		names = append(names, rule.Alert)
		assert.NotEmpty(t, fired[rule.Alert], "alerts_test.yaml does not make %s fire", rule.Alert)
		for _, alert := range fired[rule.Alert] {
			assert.Len(t, alert.Annotations, len(rule.Annotations), rule.Alert)
			for key, text := range alert.Annotations {
				rendered := regexp.QuoteMeta(strings.TrimSpace(rule.Render(t, key, alert.Labels, "VALUE")))
				assert.Regexp(t, "^"+strings.ReplaceAll(rendered, "VALUE", `[\d.]+%?`)+"$", text,
					"%s in alerts_test.yaml", rule.Alert)
			}
		}
		by, problems := series.check(rule.Expr)
		assert.Empty(t, problems, "%s: %s", rule.Alert, rule.Expr)
		if rule.For != "" {
			_, err := model.ParseDuration(rule.For)
			assert.NoError(t, err, rule.Alert)
		}
		assert.Contains(t, []string{"warning", "critical"}, rule.Labels["severity"], rule.Alert)
		assert.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		assert.Contains(t, rule.Annotations["description"], "What to do:", rule.Alert)
		for _, use := range regexp.MustCompile(`\$labels\.(\w+)`).
			FindAllStringSubmatch(fmt.Sprint(rule.Annotations), -1) {
			assert.Contains(t, by, use[1], "%s: a label that its expression does not keep", rule.Alert)
		}
	}
	assert.Subset(t, names, []string{"DeadLettersArriving", "DeadLetterQueueNotEmpty", "DeliveriesHeld",
		"RetriesGrowing", "DelayedMessagesUnroutable", "LandingQueueNotDraining"})

	documented, err := os.ReadFile("../../docs/reference/metrics.md")
	require.NoError(t, err)
	for _, name := range names {
		assert.Contains(t, string(documented), name)
	}
}

// played is an alert that fires in promtool's test file.
type played struct {
	Labels      map[string]string `yaml:"exp_labels"`
	Annotations map[string]string `yaml:"exp_annotations"`
}

// playedAlerts returns the alerts that promtool's test file expects to fire. Only promtool can say
// whether they do; their series must be ours.
func playedAlerts(t *testing.T, series registered) map[string][]played {
	t.Helper()

	var file struct {
		RuleFiles          []string `yaml:"rule_files"`
		EvaluationInterval string   `yaml:"evaluation_interval"`
		Tests              []struct {
			Name, Interval string
			InputSeries    []struct{ Series, Values string } `yaml:"input_series"`
			AlertRuleTest  []struct {
				EvalTime  string `yaml:"eval_time"`
				Alertname string
				ExpAlerts []played `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	text, err := os.ReadFile(metricsDir + "alerts_test.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalWithOptions(text, &file, yaml.Strict()))

	fired := map[string][]played{}
	for _, test := range file.Tests {
		for _, input := range test.InputSeries {
			_, problems := series.check(input.Series)
			assert.Empty(t, problems, "%s: %s", test.Name, input.Series)
		}
		for _, alert := range test.AlertRuleTest {
			fired[alert.Alertname] = append(fired[alert.Alertname], alert.ExpAlerts...)
		}
	}

	return fired
}

// unchosen are the series of an expression that do not follow the choice of topics, or of main
// queues where they tell no topic.
func (r registered) unchosen(expr string) []string {
	var found []string
	for _, use := range regexp.MustCompile(`(amqpretry_\w+){([^}]*)}`).FindAllStringSubmatch(expr, -1) {
		wanted := ""
		switch labels := r[use[1]]; {
		case labels["topic"] != nil:
			wanted = `topic=~"$topic"`
		case labels["main_queue"] != nil:
			wanted = `main_queue=~"$queue`
		case labels["queue"] != nil:
			wanted = `queue=~"$queue"`
		}
		if !strings.Contains(use[2], wanted) {
			found = append(found, use[0])
		}
	}

	return found
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	series := register(t)

	type target struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ Type, UID string }
	}
	var dashboard struct {
		ID         *int
		Title      string
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
		Panels []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ X, Y, W, H int }
			Targets                  []target
		}
	}
	text, err := os.ReadFile(metricsDir + "dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &dashboard))
	assert.Nil(t, dashboard.ID, "an import makes a new one")
	require.NotEmpty(t, dashboard.Panels)

	// What Grafana puts in the place of its variables.
	variables := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$job", ".*", "$topic", ".*", "$queue",
		".*")
	ids, asked := map[int]bool{}, map[string]bool{}
	for _, p := range dashboard.Panels {
		assert.False(t, ids[p.ID], "%s: its id is taken", p.Title)
		ids[p.ID] = true
		assert.NotEmpty(t, p.Description, p.Title)
		assert.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			assert.Equal(t, "${datasource}", target.Datasource.UID, p.Title)
			assert.Empty(t, series.unchosen(target.Expr), "%s: what the dashboard is narrowed to must narrow each of "+
				"its panels", p.Title)
			expr := variables.Replace(target.Expr)
			assert.NotContains(t, expr, "$", "a variable that the dashboard does not have")
			by, problems := series.check(expr)
			assert.Empty(t, problems, "%s: %s", p.Title, target.Expr)
			for _, use := range regexp.MustCompile(`{{\s*(\w+)\s*}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				assert.Contains(t, by, use[1], "%s: a label that its expression does not keep", p.Title)
			}
			for name := range series {
				if regexp.MustCompile(name + `\b`).MatchString(expr) {
					asked[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")] = true
				}
			}
		}
	}

	for _, v := range dashboard.Templating.List {
		if v.Type == "query" {
			query := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition)
			require.Len(t, query, 3, v.Definition)
			_, problems := series.check(fmt.Sprintf("sum by (%s) (%s)", query[2], variables.Replace(query[1])))
			assert.Empty(t, problems, v.Name)
		}
	}

	for name := range series {
		name = regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if !slices.Contains(append(brokerSeries, "amqpretry_queue_depths_up", "amqpretry_queue_depths_errors_total"),
			name) {
			assert.True(t, asked[name], "%s is in no panel", name)
		}
	}
}

// The expressions that the documentation offers.
func TestDocumentedQueries(t *testing.T) {
	t.Parallel()
	series := register(t)

	text, err := os.ReadFile("../../docs/reference/metrics.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		for _, expr := range regexp.MustCompile(`\n\n|#[^\n]*\n`).Split(block[1], -1) {
			if strings.TrimSpace(expr) == "" {
				continue
			}
			_, problems := series.check(expr)
			assert.Empty(t, problems, expr)
		}
	}
}
