package master

// Authority is what a client asks of the master, in this process or in another: every command about objects, and none
// about the memory that they lie in. The embedded store calls a Master directly, so that a look-up allocates nothing;
// a service carries these commands over a wire. A client elsewhere reads under Guard instead of Acquire, and reserves
// without WriterPin: what it holds ends by time, not by a pin that its death would leave behind.
type Authority interface {
	// Writing: reserve, write the bytes, commit or abort.
	Reserve(now int64, q ReserveRequest) (Object, error)
	Renew(now int64, r Ref, gen uint64) error
	Commit(now int64, r Ref, gen, digest uint64, loc Loc) (Replaced, error)
	Inherited(r Ref, gen uint64) (Inherited, error)
	CommitAs(now int64, r Ref, gen, digest uint64, loc Loc, as Inherited) (Replaced, error)
	Abort(r Ref, gen uint64) error
	Link(now int64, q LinkRequest) (Object, error)
	ReserveLink(now int64, q LinkRequest) (Object, error)
	StatReserved(r Ref, gen uint64) (Object, error)
	CommitLink(r Ref, gen uint64) error
	Leaving(k Key) bool
	Forgotten(k Key)
	AllForgotten()
	AbortLink(now int64, r Ref, gen uint64) (Replaced, error)

	// Reading.
	Acquire(now int64, k Key, ttl int64) (Object, error)
	Guard(now int64, k Key, ttl int64) (Object, error)
	Release(r Ref)
	Exists(now int64, k Key, ttl int64) bool
	ExistsBatch(now int64, tenant string, names []string, ttl int64, found []bool)
	Stat(k Key) (Object, error)
	ScanPage(n uint32, k Key, dst []Found) []Found
	Pages() uint32

	// Ending and changing.
	Remove(now int64, k Key, force bool) (Replaced, error)
	RemoveGroup(now int64, k Key, force bool) (out []RemovedKey, refused string, err error)
	Group(k Key) ([]string, error)
	GroupOf(k Key) string
	Pin(k Key, p PinRequest) (changed bool, err error)
	PinGroup(k Key, p PinRequest) ([]string, error)

	// Moving between tiers, by the owner of the bytes.
	StartCopy(r Ref, gen uint64, tier Tier) (Copying, error)
	PlaceCopy(c *Copying) ([]Extent, error)
	Attach(r Ref, loc Loc, durable bool) error
	Promoted(r Ref, extents []Extent) error
	Uncopied(r Ref)
	Quarantine(o *Object, tier Tier) bool
	Evict(now int64, v Victim, tier Tier) ([]Evicted, error)

	// Time passing, and what it and the commands ask of the owner of the bytes.
	Tick(now int64)
	TakeEffects() []Effect
	Usage() Usage
}

var _ Authority = (*Master)(nil)
