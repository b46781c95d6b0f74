"""Finds out on a worker's host why it failed or where it hangs, and formats the report for people and schedulers.

- Why it failed: `diagnose` combines the evidence, which is the exit code, the end of stderr (`tracebacks`, prepared by
  `stderr_text`), the error file of the worker (`error_file`), and the kernel's OOM killer or the size of a failed
  allocation (`oom`). The coordinator decides which failure came first in the whole job.
- The report: `report_text` formats it for a terminal and a log, and `error_file` for a scheduler.
- Where it hangs: `stack_service` samples workers, and `stack_text` parses their answers. `recorder_files` reads
  files of torch's flight recorder instead.
"""
