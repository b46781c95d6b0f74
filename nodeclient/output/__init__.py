"""What workers write: it goes to the terminal with prefixes, and into files, and its end is kept for reports.

`output` sets up the outputs by `output_settings`, and `round` those of one round. `pump` is the thread that moves the
bytes, over `descriptors` that never block for long. `streams` has the sources and sinks; `lines` cuts their bytes into
lines. `file_thread` keeps workers from waiting for the disk. `files` writes log files in the directories of
`log_paths`; `log_catalogue` lists these files and deletes old ones, and `log_reader` reads them. `terminal_writer`
shares this process's own outputs, where `line_prefix` identifies the workers. `interrupts` keeps tracebacks of Ctrl-C
from it. Nothing here knows the ranks of other nodes, or why a worker ended.
"""
