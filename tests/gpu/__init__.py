"""What needs an NVIDIA GPU; skipped, with the reason, where there is none. `make gpu` runs it.

`worker` is the script of workers that have a GPU each, `conftest` looks for GPUs and starts nodes. `test_devices` is
about which GPUs there are and who gets which, `test_kept_state` about state that is saved from a GPU, `test_stacks`
about what is said of workers in nccl, `test_training` about nccl and workers that start warm.

In the others three workers share one GPU: `training` is their script, `jobs` has such a job. In `test_losses` a worker,
a node or a cable is lost, in `test_hangs` a worker hangs, and in `test_random_kills` workers are killed at random
moments, `GPU_TESTS_KILLS` times. `GPU_TESTS_ON_CPU=1` runs these three with gloo and without a GPU.
"""
