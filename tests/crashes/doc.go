// Package crashes proves what a dying or a closing process costs its messages: services are
// processes of their own, which messages kill or tests close, again and again.
//
// make crashes runs every combination and prints the tables of docs/project/proof.md; make test
// runs a few of them.
package crashes
