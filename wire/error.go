package wire

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Code names a kind of refusal. Codes are stable: clients switch on them.
type Code string

// The codes. What each means and what to do is in the table that [Codes] returns, and in docs/errors.md.
const (
	CodeTopicForbidden        Code = "TOPIC_FORBIDDEN"
	CodeGuardFailed           Code = "GUARD_FAILED"
	CodeSubscriptionLimit     Code = "SUBSCRIPTION_LIMIT"
	CodeSubscriptionIDTaken   Code = "SUBSCRIPTION_ID_TAKEN"
	CodeSubscriptionUnknown   Code = "SUBSCRIPTION_UNKNOWN"
	CodePresenceDisabled      Code = "PRESENCE_DISABLED"
	CodePresenceNotJoined     Code = "PRESENCE_NOT_JOINED"
	CodeHistoryDisabled       Code = "HISTORY_DISABLED"
	CodeHistoryGap            Code = "HISTORY_GAP"
	CodeHistoryUnavailable    Code = "HISTORY_UNAVAILABLE"
	CodeQueryUnknown          Code = "LIVE_QUERY_UNKNOWN"
	CodeInputInvalid          Code = "INPUT_INVALID"
	CodeResultTooLarge        Code = "RESULT_TOO_LARGE"
	CodeDatabaseUnavailable   Code = "DATABASE_UNAVAILABLE"
	CodeChannelInvalid        Code = "CHANNEL_INVALID"
	CodeDataInvalid           Code = "DATA_INVALID"
	CodeMessageTooLarge       Code = "MESSAGE_TOO_LARGE"
	CodeFrameRateLimit        Code = "FRAME_RATE_LIMIT"
	CodeTimeout               Code = "TIMEOUT"
	CodeProtocolVersion       Code = "PROTOCOL_VERSION"
	CodeSocketUnauthenticated Code = "SOCKET_UNAUTHENTICATED"
	CodeSocketAuthUnavailable Code = "SOCKET_AUTH_UNAVAILABLE"
	CodeAuthRefreshRefused    Code = "AUTH_REFRESH_REFUSED"
	CodeOriginForbidden       Code = "ORIGIN_FORBIDDEN"
	CodeHandshakeInvalid      Code = "HANDSHAKE_INVALID"
	CodeConnectionLimit       Code = "CONNECTION_LIMIT"
	CodeAcceptBudget          Code = "ACCEPT_BUDGET"
	CodeDraining              Code = "DRAINING"
	CodeAPIKeyRequired        Code = "API_KEY_REQUIRED"
	CodeNotFound              Code = "NOT_FOUND"
	CodeMethodNotAllowed      Code = "METHOD_NOT_ALLOWED"
	CodeBodyInvalid           Code = "BODY_INVALID"
	CodeBodyTooLarge          Code = "BODY_TOO_LARGE"
	CodeQueryInvalid          Code = "QUERY_INVALID"
	CodeConfigInvalid         Code = "CONFIG_INVALID"
	CodeInternal              Code = "INTERNAL"
	CodeHandleUnknown         Code = "HANDLE_UNKNOWN"
)

// CodeInfo describes a code for people.
type CodeInfo struct {
	Code  Code   `json:"code"`
	HTTP  int    `json:"http,omitempty"` // the status where it is answered over HTTP
	Cause string `json:"cause"`
	Fix   string `json:"fix"`
	Retry bool   `json:"retry,omitempty"` // the same request may succeed later
}

var codes = []CodeInfo{
	{CodeTopicForbidden, http.StatusForbidden, "No guard allows this actor to do this here.", "Declare the channel, object or query with a guard that allows it (they deny by default), or connect as an actor who may.", false},
	{CodeGuardFailed, http.StatusServiceUnavailable, "The guard of the channel could not decide.", "Try again after the delay; the operator finds the reason in the server's log.", true},
	{CodeSubscriptionLimit, http.StatusTooManyRequests, "The connection, the client, its tenant, the object or the node holds as many subscriptions, waits or channels as it may.", "End what is not needed; if the answer names a delay, try again after it; or raise the limit at the server.", false},
	{CodeSubscriptionIDTaken, http.StatusConflict, "The sid, or the channel, is already subscribed on this connection.", "Use one sid for each channel, and unsubscribe before using it for another.", false},
	{CodeSubscriptionUnknown, http.StatusNotFound, "No subscription with this sid on this connection.", "Unsubscribe once, with the sid given to subscribe.", false},
	{CodePresenceDisabled, http.StatusNotFound, "The channel keeps no roster.", "Declare the channel with presence, or subscribe without it.", false},
	{CodePresenceNotJoined, http.StatusConflict, "This session is not in the channel's roster.", "Subscribe with presence first.", false},
	{CodeHistoryDisabled, http.StatusNotFound, "The channel keeps no history, so it has no offsets to acknowledge or read.", "Declare the channel with history, or subscribe without ack.", false},
	{CodeHistoryGap, http.StatusGone, "The history does not continue the position: it was trimmed, has expired, was lost, or the position is ahead of it.", "Read the present state, then go on from the position in the answer.", false},
	{CodeHistoryUnavailable, http.StatusServiceUnavailable, "The store of the history did not answer.", "Try again after the delay, with the same id: it is kept once. The operator finds the reason in the server's log.", true},
	{CodeQueryUnknown, http.StatusNotFound, "No live query of this name may be used here.", "Declare the query at the server, and use its name.", false},
	{CodeInputInvalid, http.StatusBadRequest, "The input does not fit the query's parameters.", "Correct the parameter that the cause names.", false},
	{CodeResultTooLarge, http.StatusRequestEntityTooLarge, "The result of the query is larger than one may be.", "Narrow the query, give it a limit or fewer columns, or raise the limit at the server.", false},
	{CodeDatabaseUnavailable, http.StatusServiceUnavailable, "The database of the query could not be read.", "Try again after the delay; the operator finds the reason in the server's log.", true},
	{CodeChannelInvalid, http.StatusBadRequest, "The channel name is malformed.", "Use segments of A-Z a-z 0-9 _ - : @ ~ = joined by dots, at most 255 bytes.", false},
	{CodeDataInvalid, http.StatusBadRequest, "A member of the message is missing, malformed, too big or too deep.", "Correct the member that the cause names.", false},
	{CodeMessageTooLarge, http.StatusRequestEntityTooLarge, "The message is larger than a connection may queue.", "Send less, or a reference to where the data is.", false},
	{CodeFrameRateLimit, http.StatusTooManyRequests, "The connection sends more frames than its budget.", "Keep to limits.framesPerSecond of welcome; wait retryAfterMs.", true},
	{CodeTimeout, http.StatusGatewayTimeout, "The answer was not ready in time.", "Try again; the operator looks at what guards and authenticators wait for.", true},
	{CodeProtocolVersion, http.StatusBadRequest, "The message or the subprotocol is not of a protocol version that this server speaks.", "Use a client of the server's protocol version; say hello first.", false},
	{CodeSocketUnauthenticated, http.StatusUnauthorized, "The credential is missing, wrong or expired.", "Connect with a valid token: Authorization: Bearer, or the subprotocol entry tidewire.token.TOKEN.", false},
	{CodeSocketAuthUnavailable, http.StatusServiceUnavailable, "The server could not check the credential.", "Try again after the delay; the credential may be right.", true},
	{CodeAuthRefreshRefused, 0, "The fresh token was refused: it is invalid, of another actor, or this server takes none on an open connection.", "Send a valid token of the same actor, or connect again.", false},
	{CodeOriginForbidden, http.StatusForbidden, "Pages of this origin may not connect.", "Add the origin to the server's allowed origins.", false},
	{CodeHandshakeInvalid, http.StatusBadRequest, "The request is not a WebSocket upgrade that this server takes.", "Use a WebSocket client of RFC 6455 over HTTP/1.1.", false},
	{CodeConnectionLimit, http.StatusServiceUnavailable, "The node holds as many connections as it may.", "Try again after the delay, on another node if there is one.", true},
	{CodeAcceptBudget, http.StatusServiceUnavailable, "More connections arrive than the node accepts in a second.", "Try again after the delay, which spreads those who wait.", true},
	{CodeDraining, http.StatusServiceUnavailable, "The node is going away.", "Try again after the delay, on another node if there is one.", true},
	{CodeAPIKeyRequired, http.StatusUnauthorized, "The API key is missing or wrong.", "Send Authorization: Bearer KEY with a key of the server's configuration.", false},
	{CodeNotFound, http.StatusNotFound, "There is nothing at this path.", "See docs/openapi.yaml for the paths.", false},
	{CodeMethodNotAllowed, http.StatusMethodNotAllowed, "The path does not take this method.", "Use a method of the Allow header.", false},
	{CodeBodyInvalid, http.StatusBadRequest, "The body is not the JSON that this path takes.", "Correct what the detail names; see docs/openapi.yaml.", false},
	{CodeBodyTooLarge, http.StatusRequestEntityTooLarge, "The body, or the number of messages in it, is too large.", "Send smaller batches.", false},
	{CodeQueryInvalid, http.StatusBadRequest, "A parameter of the address is unknown or malformed.", "Correct the parameter that the detail names; see docs/openapi.yaml.", false},
	{CodeConfigInvalid, 0, "The configuration is wrong; the server does not start.", "Correct the key that the cause names; tidewire serve --print-config shows the result.", false},
	{CodeInternal, http.StatusInternalServerError, "A fault of the server.", "Report it with the time; the reason is in the server's log.", true},
	{CodeHandleUnknown, http.StatusNotFound, "The object has no such subscription: it has ended, was not polled for too long, or belongs to somebody else.", "Subscribe again. What must not be missed is read from the object's log.", false},
}

// Codes returns all codes.
func Codes() []CodeInfo { return append([]CodeInfo(nil), codes...) }

// Info returns the description of a code.
func (c Code) Info() CodeInfo {
	for _, info := range codes {
		if info.Code == c {
			return info
		}
	}
	return CodeInfo{Code: c}
}

// Error is a failure that a client may see.
type Error struct {
	Code    Code
	Message string        // the cause, for people; never parsed
	Retry   time.Duration // how long to wait; zero means that repeating does not help
	Err     error         // what lies behind it: logged, never sent
}

func (e *Error) Error() string {
	s := string(e.Code) + ": " + e.Message
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is matches errors of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// Errorf makes an Error with a cause.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// AsError returns err as an [*Error]; one of another kind becomes INTERNAL, with nothing of its text.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: CodeInternal, Message: "a fault of the server", Err: err}
}
