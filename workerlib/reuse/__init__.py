"""Rounds in place: a worker leaves a round and takes part in the next one as the same process.

`staying_worker` leaves a round and takes the next one, over a connection to nodeclient. `group_sockets` gets the main
thread out of a collective of gloo, and `leftovers` removes what a round has left behind in this process.
docs/rounds-in-place.md has the conditions of a round in place.
"""
