"""What this host has. Nothing here changes the host, except that `ports` and `worker_socket` open sockets.

`devices` finds GPUs and counts workers, `gpu_memory` finds what of their memory is in use, `cpus` finds how CPUs belong
together, and `numa` chooses the CPUs of each worker. `memory` finds how much memory there is, and `control_groups` what
limits this process. `process_state` shows the state of a process, and `awaited` what it waits for outside its job.
`worker_socket` is where workers connect. `addresses` finds where others are likely to reach this host, and `schedulers`
reads what Slurm and others have set.
"""
