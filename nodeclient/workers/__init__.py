"""Runs the local worker group as processes: starts, watches and ends them and their descendants.

`local_workers` is the group, `spawn` starts one process of it, and `process_tree` finds all descendants. `guard` starts
`guard_process`, which cleans up if this nodeclient dies; `orphans` reaps orphans. `leftover_processes` ends processes
that outlive their worker. `reusable_workers` has the connections to workers that can enter another round as the same
processes. `exit_reporter` turns exits into events, in order. `step_slots` reads workers' steps, and `syscalls` makes
calls that a Python may lack.
"""
