package tidewire

import "fmt"

// Routes lists the operations of the HTTP interface, and whether each needs an API key.
func (n *Node) Routes() []string {
	var out []string
	for _, r := range n.routes {
		out = append(out, fmt.Sprint(r.method, " ", r.path, " ", r.backend))
	}
	return out
}
