package object

// HostOf returns the host of an event.
func HostOf(e *Event) *Host { return e.host }
