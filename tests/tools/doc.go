// Package tools proves what is said of the tools for dead letters: that a process that is killed
// while it replays, moves or imports loses nothing, and that browsing leaves every message where it
// is. The tests run the command as it is built.
//
//	make tools                                                   100 kills for each command, 10,000 browses for each kind of queue
//	make tools KILLS=20 BROWSES=1000 SEED=42 REPORT=report.md      fewer, with the same moments again, and the tables in a file
package tools
