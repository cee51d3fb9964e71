//go:build !race

package feedtest

// exactReads is how many reads are held against the feed.
const exactReads = 2000
