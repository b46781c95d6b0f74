"""Why training programs fail, and what to do about it: for a terminal, the page and programs. Pure.

`match` looks for the cause of a failure in tables of known ones: `launch`, `network` and `resource`, which are made of
`rule`s. `hang` has the advice about workers that hung. `other_workers` describes what else happened in the round;
`failure_status` puts it all together. `closed_connection` tells which failures another worker's end has caused.
`coordinatord.core` decides which failure came first; `nodeclient.diagnosis` finds out what the failing worker's host
knows.
"""
