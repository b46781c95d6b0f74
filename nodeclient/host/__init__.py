"""What this host has to offer; nothing here changes it, but `ports`, which reserves one.

`devices` finds GPUs and CPUs, `cpus` how CPUs belong together, and `numa` decides which of them each worker gets.
`addresses` says where others are likely to reach this host, `schedulers` what Slurm and others have set.
"""
