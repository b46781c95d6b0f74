"""Defines the messages and data that coordinatord and nodeclient exchange.

Sessions, the nodes' connections to the coordinator: `messages` has most of their messages. `log_messages` has those
that read a log, `stack_messages` those about workers' stacks, and `arrival_messages` those about workers' arrivals in
collectives. `kept_state` has the parts of messages about kept state, `pair_messages` those about tests of two nodes,
and `fields` the types of fields. `schema` validates data from outside, `codec` encodes and decodes messages, and
`versions` has the fields of each version. `news` marks fields whose changes are urgent, or do not matter.

The HTTP API: `http` has its requests and answers.

Both: `access_token` has the format of tokens. `exit_codes` explains exit codes, and `errors` has the base classes of
errors. `text` sanitizes, compares and abbreviates texts, and `ip_addresses` does the like for IP addresses and for
HOST:PORT. `spec_flags` writes settings of a job as flags. None of them imports a program, opens a socket or reads a
clock.

One rule shapes a session: every message carries a whole state, and no message is an instruction. A node reports its
observed state (`Join`, `Observed`), and the coordinator answers with the desired state (`Desired`). So the next message
repairs one that is lost, repeated or late. The exceptions are questions: the coordinator reads a node's log files, and
asks for its workers' stacks and their arrivals in collectives.
"""
