"""Utilities of coordinatord and nodeclient that no library has. Nothing here knows of jobs, nodes or rounds.

`settings` reads flags, environment variables and files. `logs` formats log lines, and `line_writer` writes them without
blocking. `flight_recorder` records the events before a bug, and `object_graph` serializes them. `tasks` runs background
tasks. `timers` has a timer for a deadline, and one for many equal timeouts. `websocket` has both ends of a WebSocket.
`pinned_tls` verifies a server by its key, and `private_files` stores secrets. `own_python` keeps the modules and
variables of a user's scripts out of our programs. `systemd` notifies the service manager. `boot`, `tcp_options`,
`process_limits`, `early_signals` and `local_time` each set or read one property of the system.
"""

__version__ = "0.1.0.dev0"

PAGES = f"https://github.com/coordinatord/coordinatord/blob/{'main' if '.dev' in __version__ else f'v{__version__}'}"
"""The address of the pages of this version, which has a tag once it is released: an installation has no pages."""
