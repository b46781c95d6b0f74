"""Utilities of both programs that no library has. Nothing here knows of jobs, nodes or rounds.

`settings` reads flags, variables and files. `logs` formats log lines, and `line_writer` writes them without waiting.
`flight_recorder` records what led to a bug, and `object_graph` serializes that. `tasks` runs background tasks. `timers`
has a deadline timer, and a timeout for many things that wait equally long. `websocket` has both ends of sessions.
`pinned_tls` checks a server's key before anything is sent to it, and `private_files` stores secrets. `own_python` keeps
the modules and variables of a user's scripts out of our programs. `systemd` notifies the service manager. `boot`,
`tcp_options`, `process_limits`, `early_signals` and `local_time` each set or read one property of the system.
"""

__version__ = "0.1.0"
