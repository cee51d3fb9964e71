//go:build !race

package sqlite_test

// captureRounds is how many transactions a test of capture does.
const captureRounds = 200
