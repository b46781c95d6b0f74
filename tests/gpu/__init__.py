"""What needs an NVIDIA GPU; skipped, with the reason, where there is none. `make gpu` runs it.

`worker` is the script of the workers, `conftest` looks for GPUs and starts nodes, `test_devices` is about which GPUs
there are and who gets which, `test_kept_state` about state that is saved from a GPU, `test_stacks` about what is said
of workers in nccl, `test_training` about nccl and about workers that start warm, fail and start again.
"""
