"""Moves the output of workers: to the terminal with prefixes, and into files; keeps its end for reports.

Workers write to pipes, whose other ends this process reads. A full pipe stops the worker that writes to it, and through
its collectives the whole job. A slow terminal or disk must hold up neither other workers nor the node's heartbeats. So
one thread moves all bytes, another one writes files, and the event loop does neither.

`output` sets up the outputs by `output_settings`, and `round` those of one round. `pump` is the thread that moves the
bytes, over `descriptors` that never block for long. `streams` has the sources and sinks; `lines` splits their bytes
into lines, with prefixes that identify the workers. `file_thread` writes files, so that workers do not wait for the
disk. `files` writes log files in the directories of `log_paths`; `log_catalogue` lists these files and deletes old
ones, and `log_reader` reads them. `terminal_writer` shares this process's own outputs, and `text_width` measures what
it shows there. `interrupts` hides tracebacks of Ctrl-C. Nothing here knows the ranks of other nodes, or why a worker
ended.
"""
