package weight

// State is where a revision is in its life. Phase 1 uses IMPORTING and READY; the names and edges are the RFC's.
type State string

const (
	Importing   State = "IMPORTING"
	Ready       State = "READY"
	Serving     State = "SERVING"
	Idle        State = "IDLE"
	Evicting    State = "EVICTING"
	Evicted     State = "EVICTED"
	Rehydrating State = "REHYDRATING"
)
