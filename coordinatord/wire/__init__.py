"""The protocol between coordinatord and nodeclient, and nothing else.

`messages` says what the two sides tell each other, `schema` checks that what arrived is that, and `codec` turns it into
bytes and back; `exits` says what exit codes mean. Shared by both programs, so it knows neither of them, no socket and
no clock.

One rule shapes all of it: every message carries a whole state and no message is an instruction. A node says what *is*
(`Join`, `Observed`), the coordinator says what *should be* (`Desired`). A lost, repeated or late message is therefore
repaired by the next one.
"""
