package sqlite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
)

// walHeader is the size of the header of the index of the write-ahead log, which every commit of any process changes.
const walHeader = 48

// watch tells cheaply that something was committed. It reads the header out of the -shm file where mapped files and reads of them agree, and asks SQLite
// elsewhere: that takes a hundred times as long.
type watch struct {
	r    *feedReader
	path string
	shm  *os.File // nil before the file is there, and where it is not read
	seen []byte
}

// look returns what a commit changes.
func (w *watch) look() ([]byte, error) {
	if w.shm == nil && (runtime.GOOS == "linux" || runtime.GOOS == "darwin") {
		f, err := os.Open(w.path + "-shm")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		w.shm = f // the connection keeps the file where it is
	}
	if w.shm != nil {
		header := make([]byte, walHeader)
		if _, err := w.shm.ReadAt(header, 0); err == nil {
			return header, nil
		}
	}
	version, err := w.r.numbers("PRAGMA main.data_version")
	if err != nil {
		return nil, err
	}
	return binary.BigEndian.AppendUint64(nil, uint64(version[0])), nil
}

// changed reports whether it is another one than was seen; an error comes again when the log is read.
func (w *watch) changed() bool {
	now, err := w.look()
	return err != nil || !bytes.Equal(now, w.seen)
}

func (w *watch) close() error {
	if w.shm == nil {
		return nil
	}
	return w.shm.Close()
}
