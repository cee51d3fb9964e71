module github.com/tidewire/tidewire

go 1.26.8

require (
	github.com/gobwas/ws v1.5.0
	golang.org/x/sys v0.50.0
)

require (
	github.com/coder/websocket v1.8.15 // indirect
	github.com/gobwas/httphead v0.1.0 // indirect
)
