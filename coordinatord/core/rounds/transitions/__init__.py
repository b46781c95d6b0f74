"""The fourth floor: all that changes the state.

`table` says which state follows which, and when; `actions` are what its rows do, and `decision` collects what goes out.
`apply` changes the durable state by a record, in life and in replay alike, and `follow` brings the rest up to date.
`observations` takes in what nodes report, `admin` what operators ask for; `runs` opens and drops runs, and `releases`
lets nodes go that are to leave or have waited for too long.
"""
