"""Why a worker failed, found out on its own host, and how people and schedulers are told.

`diagnose` looks at what is left of a worker: its exit code, the end of its stderr (`tracebacks`, made fit by
`stderr_text`), the error file that it may have written (`recorded`) and what the kernel did (`oom`, `kernel_log`).
`report_text` is the report for a terminal and for a log, `error_file` the one for a scheduler. Which failure came first
in the whole job is decided by the coordinator.
"""
