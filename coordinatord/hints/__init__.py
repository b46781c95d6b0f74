"""Why training programs fail, and what to do about it: for a terminal, the page and programs. Pure.

`match` looks for the cause of a failure in the tables of known causes: `launch`, `network` and `resource`, whose rows
are defined in `rule`. `hang` has the advice about workers that hung. `other_workers` describes the other events of the
round. `failure_status` puts all of this together. `closed_connection` recognizes failures that the end of another
worker has caused. `coordinatord.core` decides which failure came first, and `nodeclient.diagnosis` finds out what
the failed worker's host shows.
"""
