"""Rounds in place: a worker leaves a round and takes part in the next one as the same process.

`staying_worker` leaves a round and takes the next one, `round_line` is its connection to nodeclient, and
`round_messages` what is said on it, for both sides and of the standard library alone. `group_sockets` gets the main
thread out of a collective of gloo, and `leftovers` removes what a round has left behind in this process.
docs/rounds-in-place.md says when a round is begun this way, and when not.
"""
