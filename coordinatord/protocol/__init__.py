"""What coordinatord and nodeclient send each other, and nothing else.

`messages` has what is said in a session; `worker_ends` and `fields` are parts of messages. `schema` checks that what
arrived is a message, `codec` turns it into bytes and back, `versions` says which fields each version has. `api` has
what the HTTP API answers and is asked, written and read by the same schema.
`exit_codes` says what exit codes mean; `errors` says by whose fault something went wrong; `text` makes texts fit for
messages and compares errors. Both programs share this room, so it knows neither of them, no socket and no clock.

One rule shapes a session: every message carries a whole state and no message is an instruction. A node reports what
*is* (`Join`, `Observed`), the coordinator answers what *should be* (`Desired`). A lost, repeated or late message is
therefore repaired by the next one.
"""
