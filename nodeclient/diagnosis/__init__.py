"""Finds out on a worker's host why it failed or where it hangs, and formats the report for people and schedulers.

`diagnose` combines the evidence: the exit code, the end of stderr (`tracebacks`, prepared by `stderr_text`), the error
file of the worker, and the kernel's OOM killer (`oom`). `report_text` formats the report for a
terminal and a log, and `error_file` for a scheduler. The coordinator decides which failure came first in the whole job.
`stack_service` samples workers, and `stack_text` parses their answers; `recorder_files` reads the same from files of
torch's flight recorder.
"""
