"""What workers write: to the terminal with prefixes, into files, and the end of it kept for reports.

`output` sets up what `output_settings` ask for, `round` does so for one round. `pump` is the thread that moves the
bytes, over `descriptors` that never block for long. `streams` are the sources and sinks, and keep the end of each
source; `lines` cuts them into lines. `files` are log files in the directories of `log_paths`; `log_catalogue` is the
list of them and deletes old ones, and `log_reader` reads them again. `terminal_writer` shares our own outputs, where
`line_prefix` identifies the workers, and `terminal` writes this process's own lines. Nothing here knows the ranks of
other nodes, or why a worker ended.
"""
