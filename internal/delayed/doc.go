// Package delayed publishes messages with a delay for package config/delay, which says what happens to them.
//
//	Publisher.Publish ─► Watermill's delay publisher ─► prepare ─┬─► batch ─► package publishing ─► objects
//	                     reads context and generator             └─► the wrapped publisher: without a delay
package delayed
