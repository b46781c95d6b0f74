"""The protocol between coordinatord and nodeclient, and nothing else.

`messages` says what the two sides send each other; `worker_ends` and `fields` are parts of messages. `schema` checks
that what arrived is a message, `codec` turns it into bytes and back, `versions` says which fields each version has.
`exit_codes` says what exit codes mean; `text` makes texts fit for messages and compares errors. Both programs share
this room, so it knows neither of them, no socket and no clock.

One rule shapes all of it: every message carries a whole state and no message is an instruction. A node reports what
*is* (`Join`, `Observed`), the coordinator answers what *should be* (`Desired`). A lost, repeated or late message is
therefore repaired by the next one.
"""
