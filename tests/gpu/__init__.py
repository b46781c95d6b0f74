"""What needs an NVIDIA GPU; skipped, with the reason, where there is none. `make gpu` runs it.

`worker` is the script of workers that have a GPU each, and `conftest` looks for GPUs and starts nodes. In
`test_shared_gpu` three workers share one GPU: `training` is their script, `jobs` has such a job. Workers are killed at
random moments `GPU_TESTS_KILLS` times there, and `GPU_TESTS_ON_CPU=1` runs it with gloo and without a GPU.
"""
