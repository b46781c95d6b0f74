"""Why a worker failed, or where it stands: the findings on its own host, and the report for people and schedulers.

`diagnose` puts the evidence together: the exit code, the end of stderr (`tracebacks`, prepared by `stderr_text`), the
error file that the worker may have written, and the acts of the kernel (`oom`). `report_text` is the report for a
terminal and for a log, `error_file` the one for a scheduler. The coordinator decides which failure came first in the
whole job. `stack_service` asks workers where they stand, and `stack_text` reads their answers; `recorder_files` reads
the same from files of torch's flight recorder.
"""
