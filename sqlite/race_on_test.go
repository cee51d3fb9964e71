//go:build race

package sqlite_test

// captureRounds is how many transactions a test of capture does. The race detector makes SQLite some fifty times slower.
const captureRounds = 10
