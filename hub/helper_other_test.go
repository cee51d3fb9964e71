//go:build !unix

package hub_test

func setReadBuffer(uintptr, int) {}
