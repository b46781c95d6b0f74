"""What the shells of both programs need and no library has. Nothing here knows of jobs, nodes or rounds.

`settings` reads flags, variables and files. `logs` formats log lines, and `line_writer` writes them without waiting.
`flight_recorder` records what led to a bug, and `object_graph` writes that down. `tasks` keeps background tasks.
`timers` has the one timer of a machine, and one for many things that wait equally long. `websocket` has both ends of
sessions. `pinned_tls` compares a server's key before anything is sent to it, and `private_files` keeps secrets.
`own_python` keeps the modules and variables of a user's scripts out of our programs. `systemd` notifies the service
manager; `boot`, `tcp_options`, `process_limits`, `early_signals` and `local_time` each set up or read one thing of the
system.
"""

__version__ = "0.1.0"
