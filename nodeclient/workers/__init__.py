"""Runs the local worker group as processes: starts, watches and ends them and their descendants.

- The workers: `local_workers` is the group, and `spawn` starts one process of it. `exit_reporter` turns exits into
  events, in order. `step_slots` reads workers' steps. `reusable_workers` has the connections to workers that can enter
  another round as the same processes.
- Their descendants: `process_tree` finds them by a mark in their environment. `leftover_processes` ends those that
  outlive their worker, and `orphans` reaps those that become children of this process.
- If this nodeclient dies: `guard` starts `guard_process`, which then ends the workers.

`python_command` reads a command line of Python, and decides whether it can be started warm.
"""
