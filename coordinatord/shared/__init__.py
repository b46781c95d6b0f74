"""What the shells of both daemons need and no library has: settings, log format, the one timer, tasks that are kept.

Nothing here knows of jobs, nodes or rounds.
"""

__version__ = "0.1.0"
