"""Moves the output of workers: to the terminal with prefixes, and into files; keeps its end for reports.

`output` sets up the outputs by `output_settings`, and `round` those of one round. `pump` is the thread that moves the
bytes, over `descriptors` that never block for long. `streams` has the sources and sinks; `lines` splits their bytes
into lines, with prefixes that identify the workers. `file_thread` writes files, so that workers do not wait for the
disk. `files` writes log files in the directories of `log_paths`; `log_catalogue` lists these files and deletes old
ones, and `log_reader` reads them. `terminal_writer` shares this process's own outputs. `interrupts` hides tracebacks of
Ctrl-C there. Nothing here knows the ranks of other nodes, or why a worker ended.
"""
