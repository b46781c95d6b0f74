"""What the coordinator decides, and nothing that it does.

Pure: no clock, socket, file, log or chance. `machine.Coordinator` takes an event and the time, and returns what must be
remembered (records) and then said (effects). Read in this order: `events` and `effects` are the two edges, and `outbox`
collects what goes out; `run` holds the state of one execution of a job, `member` that of a node in it, and `words` says
it; `policy` has the numbers to decide by; `table` says which state follows which, when (`conditions`), by doing what
(`actions`), and why; `goals` says what each node is asked for meanwhile; `admission` says who is let in; `ranks`,
`verdict`, `addresses` and `deadlines` are the small sums; `ledger` and `timeline` say where the time went, `spending`
where it is cut; `view` shows it all to people.
"""
