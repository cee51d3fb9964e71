//go:build !unix

package sqlite_test

func killed() bool { return false }
