"""The messages and data that coordinatord and nodeclient exchange, and nothing else.

Sessions: `messages` has most of their messages. `log_messages` has those that read a log, `stack_messages` those about
where workers stand, and `arrival_messages` those about when workers came to collectives. `kept_state` has the parts of
messages about kept state, and `fields` the types of fields. `schema` checks data from outside, `codec` turns a message
into bytes and back, and `versions` has the fields of each version.

The HTTP API: `http` has its requests and answers.

Both: `access_token` is the form of tokens. `exit_codes` explains exit codes, and `errors` has the base classes of
errors. `text` makes texts fit for messages, and compares errors. Nothing here imports either program, opens a socket or
reads a clock.

One rule shapes a session: every message carries a whole state, and no message is an instruction. A node reports what
*is* (`Join`, `Observed`), the coordinator answers what *should be* (`Desired`). So the next message repairs one that is
lost, repeated or late. The exceptions change no state: the coordinator reads a node's log files, and asks where its
workers stand and when they came to collectives.
"""
