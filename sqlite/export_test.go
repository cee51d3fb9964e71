package sqlite

// Exec runs SQL on the connection that writes.
func (s *Stream) Exec(sql string) error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return s.writer.Exec(sql)
}

// Number asks the connection that writes for a number.
func (s *Stream) Number(sql string) (int64, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return s.writer.number(sql)
}

// LimitWAL sets after how many pages the write-ahead log is checkpointed.
func (s *Stream) LimitWAL(pages int) { s.writer.limit, s.writer.next = pages, pages }

// Waiting is how many appends wait for a commit.
func (s *Stream) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}
