//go:build !unix

package hub

import "errors"

const readsFD = false

func readFD(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }
