"""The local worker group as processes: started, watched and ended, with all that they have started.

`local_workers` is the group, `spawn` starts one process of it, `process_tree` finds all that it has started. `guard`
starts `guard_process`, which cleans up should this nodeclient die; `orphans` reaps orphans. `leftover_processes` are
those that workers leave behind. `staying_workers` has the connections to workers that can go into another round as the
same processes. `exit_reporter` turns exits into events in their order, `step_slots` reads the steps that workers
report, and `syscalls` makes calls that a Python may lack.
"""
