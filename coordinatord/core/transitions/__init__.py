"""The fourth floor: all that changes the state.

`table` says which state follows which, and when; `actions` are what its rows do, and `decision` collects what goes out.
`apply` puts a record into the state, live and in a replay alike. `observations` takes what nodes report, `admin` what
operators ask for; `runs` opens and releases runs.
"""
