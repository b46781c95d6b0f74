"""Why a worker failed, found out on its own host, and how people and schedulers are told.

`account` looks at what is left of a worker: its exit code, the end of its stderr (`tracebacks`), the error file that it
may have written (`recorded`) and what the kernel did (`oom`). `hints` says what to do where the cause is well known;
`block` is the report in the terminal, `error_file` the one for a scheduler. Which failure came first in the whole job
is decided by the coordinator, not here.
"""
