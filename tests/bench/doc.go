// Package bench measures the retrier against what people would do without it: benchmarks that need
// a broker, in ratios, within one run.
//
//	make bench                                      all of them, for docs/project/benchmarks.md
//	make bench BENCH=Healthy ROUNDS=3 SCALE=0.1     one of them, shorter
//
// Each comparison runs its contenders in turn, round after round, so that whatever else the machine
// is doing meets them all alike. What counts is the median over the rounds of their ratio within a
// round. The environment: AMQP_URI is the broker, SCALE multiplies the numbers of messages and
// lengths of time, REPORT is a file that the tables are added to.
package bench
