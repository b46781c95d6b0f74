"""The fourth floor: all that changes the state.

`table` says which state follows which, and when; `actions` are what its rows do, and `decision` collects what goes out.
`apply` changes the durable state by a record, in life and in replay alike, and `follow` brings the rest up to date.
`observations` takes what nodes report, `kept_reports` what they say that they keep, `admin` what operators ask for;
`runs` opens and releases runs, and `vain_waits` lets nodes go that have waited in vain. `hang_looks` looks at workers
that do no step, and names the culprits; `laggards` takes in who comes last to collectives, and `looks` hands both what
was seen.
"""
