"""The fourth floor: all that changes the state.

`table` says which state follows which, and when; `actions` are what its rows do, and `decision` collects what goes
out. `apply` changes the durable state by a record, in life and in replay alike, and `follow` brings the rest up to
date. `observations` takes in what nodes report, `kept_reports` what they report that they keep, `admin` what operators
ask for; `runs` opens and drops runs, and `releases` lets nodes go that are to leave or have waited in vain.
`hang_looks` has workers looked at that do no step, and names the culprits. `laggards` takes in which worker comes last
to collectives, and `looks` passes the answers of workers to these two.
"""
