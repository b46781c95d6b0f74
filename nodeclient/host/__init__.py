"""What this host has to offer. Nothing here changes it, except that `ports` and `worker_socket` listen.

`devices` finds GPUs and CPUs, `cpus` how CPUs belong together, and `numa` decides which of them each worker gets.
`process_state` looks at a process, and `worker_socket` is where those of workers connect. `memory` finds how much there
is, and `control_groups` what limits this process.
`addresses` finds where others are likely to reach this host, `schedulers` what Slurm and others have set.
"""
