"""The messages and data that coordinatord and nodeclient exchange, and nothing else.

`messages` has the messages of a session, `log_messages` those that read a log, `stack_messages` those that ask where
workers stand, and `arrival_messages` those that ask when they came to collectives; `node_offer`, `kept_state`,
`kept_parts`, `persisted_state`, `worker_ends`, `worker_starts`, `scale_up`, `section`, `hang_kind` and `fields` are
parts of messages. `schema` checks that received data is a message, `codec` turns it into bytes and back, `versions` has
the fields of each version. `api` has the requests and answers of the HTTP API, `failure_answers`, `log_answers`,
`stack_answers`, `kept_answers`, `lateness_answers`, `start_answers` and `coordinator_answers` those about failures,
logs, stacks, kept state, who comes late to collectives, how workers were begun, and coordinators that share a store,
`answer_fields` the types of their fields, and `page_events` the events of the live page, all written and read by the
same schema. `access_token` is the form of the tokens that come with both. `exit_codes` explains exit codes; `errors`
says by whose fault something went wrong; `text` makes texts fit for messages and compares errors. `stack_place` finds
the line of a script at which a stack stands. `frozen_class` makes dataclasses that cost little. Both programs share
this room, so it knows neither of them, no socket and no clock.

One rule shapes a session: every message carries a whole state and no message is an instruction. A node reports what
*is* (`Join`, `Observed`), the coordinator answers what *should be* (`Desired`). A lost, repeated or late message is
therefore repaired by the next one. The exceptions change no state: a person may read a node's log files, and a node may
be asked where its workers stand, and when they came to collectives.
"""
