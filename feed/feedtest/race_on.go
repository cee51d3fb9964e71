//go:build race

package feedtest

// exactReads is how many reads are held against the feed; the race detector makes embedded databases many times slower.
const exactReads = 400
