"""What workers write: to the terminal with prefixes, into files, and the end of it kept for reports.

`output` sets up what `output_settings` ask for, `round` that of one round. `pump` is the thread that moves it, over
`descriptors` that never block for long; `streams` are its ways, and keep their ends; `lines` cuts them. `files` are
log files in the directories of `log_paths`; `terminal_writer` shares our own outputs, where `line_prefix` tells workers
apart and `terminal` is this process's own voice. Nothing here knows of ranks of other nodes, or why a worker ended.
"""
