"""What workers write: to the terminal with prefixes, into files, and the end of it kept for reports.

Nothing here knows of rounds, ranks of others, or why a worker ended.
"""
