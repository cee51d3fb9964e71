package object

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Bounds of the interface. They cannot be changed.
const (
	MaxIDBytes      = 255
	MaxNameBytes    = 64
	MaxTextBytes    = 65_536
	MaxReasonBytes  = 1_024
	MaxWait         = time.Hour
	MaxEventTimeout = 15 * time.Minute
	// MaxBacklogMessages is how many messages may wait for one subscription, beside the bytes of Options.MaxBacklog.
	MaxBacklogMessages = 65_536
)

// ErrViolation is what every violation is.
var ErrViolation = errors.New("object: violation")

// The violations.
var (
	ErrID            = violation("an object's id is 1 to %d bytes of UTF-8", MaxIDBytes)
	ErrChannelName   = violation("a channel's name is 1 to %d bytes of A-Z a-z 0-9 . _ : -", MaxNameBytes)
	ErrText          = violation("a text is 0 to %d bytes of UTF-8", MaxTextBytes)
	ErrReason        = violation("a reason is 0 to %d bytes of UTF-8", MaxReasonBytes)
	ErrWait          = violation("a wait is 0 to %d ms", MaxWait.Milliseconds())
	ErrHandle        = violation("the handle is not of a subscription of this event")
	ErrChannels      = violation("the object has as many channels as it may")
	ErrSubscriptions = violation("the channel, or the event, has as many subscriptions as it may")
	ErrAfter         = violation("the message to go on behind is before one that was confirmed, or was not given yet")
	ErrEnded         = violation("the event has ended")
)

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrViolation, fmt.Sprintf(format, args...))
}

func checkID(id string) error {
	if id == "" || len(id) > MaxIDBytes || !utf8.ValidString(id) {
		return fmt.Errorf("%w: got %d bytes", ErrID, len(id))
	}
	return nil
}

func checkName(name string) error {
	ok := name != "" && len(name) <= MaxNameBytes
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == ':' || c == '-'
	}
	if !ok {
		return fmt.Errorf("%w: got %d bytes", ErrChannelName, len(name))
	}
	return nil
}

func checkText(text string) error { return checkUTF8(text, MaxTextBytes, ErrText) }

func checkReason(reason string) error { return checkUTF8(reason, MaxReasonBytes, ErrReason) }

func checkUTF8(s string, most int, err error) error {
	switch {
	case len(s) > most:
		return fmt.Errorf("%w: got %d bytes", err, len(s))
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: it is not UTF-8", err)
	}
	return nil
}
