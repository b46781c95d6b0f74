"""Examines this host, without changing it, except that `ports` and `worker_socket` open sockets.

It reads what the kernel and the GPUs' driver say, in /proc, /sys and NVML, and never imports torch. What this process
may not see, as in a container, counts as not known, and is no error.

`devices` finds GPUs and counts workers, `gpu_memory` finds GPU memory in use, `capacity` finds the CPUs and the memory
that this process may use, and `numa` chooses the CPUs of each worker. `kernel_log` reads the kernel's log, and
`host_facts` the facts that the health check judges. `process_state` reads the state of a process, and `awaited` finds
the thing outside its job that it waits for. Workers connect to `worker_socket`. `addresses` finds an address at which
others probably reach this host, and `schedulers` reads the variables of Slurm and others. `foreign_workerlib` finds a
`workerlib` that is not ours. `syscalls` makes calls that a Python may lack.
"""
