// Package policy decides what leaves the store under pressure and what comes back to memory. Everything in it is a function
// of its arguments: no locks, no clock, no randomness but a seed, so the same state gives the same victims in the same order,
// in the store and in a simulator.
//
// What pins and pressure do to a committed object that nobody reads and no other key shares:
//
//	            | below the watermark | above it, or an       | the objects without a pin
//	            |                     | allocation failed     | do not cover the need
//	------------+---------------------+-----------------------+------------------------------------------------
//	no pin      | stays               | leaves, oldest first  | leaves
//	soft pin    | stays               | stays                 | leaves, oldest first, up to Need.SoftBytes
//	live lease  | stays               | stays                 | stays; a candidate again once the lease ends
//	hard pin    | stays               | stays                 | stays; only unpinning makes it a candidate
//
// Pins add up: the object stays if any of them keeps it. Where the victims do not cover the need, the caller, who sees that, fails the
// request and takes none. The caller also keeps groups whole, by offering a group as one candidate or not at all.
package policy
