"""workerlib: the library with which a training script takes part in a job.

    import workerlib

    with workerlib.init() as ctx:
        model = DistributedDataParallel(Model().to(ctx.device))

A worker is one training process, which nodeclient has started on its host. It belongs to a *round*: one formation of
the workers of all hosts. When a worker fails, or a host comes or goes, all workers end, and the next round begins,
mostly with new processes.

Importing this package starts no thread, installs no hook, and imports no torch. Modules that take time to import, or
need torch, are loaded when a script first uses them.

`init` reads the environment of a worker and prepares torch. `progress` reports steps and sections, and `record` the
exception that ends a worker. `sampler` deals out the samples of an epoch, and `micro_batches` splits a batch among the
workers. `stop` records a signal that asks the worker to end, and has all workers agree on that. `store` serves torch's
store, and `gloo` waits for gloo's threads before a process group is destroyed. `responder` tells nodeclient where the
worker stands. Functions and classes of this package call `responder.begin` when a script uses them. Its first call
starts a thread, has faulthandler handle one realtime signal, and registers functions for forked children and the end of
Python. Without the variable COORDINATORD_STACKS it does nothing.

`keeping` keeps state that outlives the workers, and tells a script when to write a checkpoint of its own. `in_place`
runs a training again in each round, and `reuse` takes a process through these. The docstrings of the two packages say
what each does in the process, and how to switch that off. `agent_channel` connects them with nodeclient.

`contract` has the variables, messages and memory that a worker and nodeclient share. `integrations` has callbacks for
frameworks. `pair_test` is no part of a script: `nodeclient preflight` has each host run it, to find bad ones.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workerlib.contract.env import NotLaunchedError, WorkerEnvironment
from workerlib.init import Context, init
from workerlib.progress import section, step
from workerlib.record import record
from workerlib.stop import should_stop

if TYPE_CHECKING:
    from workerlib.in_place import elastic, rounds
    from workerlib.keeping.checkpoints import checkpointed, should_checkpoint
    from workerlib.keeping.kept_storage import KeptReader, KeptWriter
    from workerlib.micro_batches import global_batch
    from workerlib.sampler import ElasticDistributedSampler

__all__ = [
    "Context",
    "ElasticDistributedSampler",
    "KeptReader",
    "KeptWriter",
    "NotLaunchedError",
    "WorkerEnvironment",
    "checkpointed",
    "elastic",
    "global_batch",
    "init",
    "record",
    "rounds",
    "section",
    "should_checkpoint",
    "should_stop",
    "step",
]


_AT_FIRST_USE = {
    "ElasticDistributedSampler": "workerlib.sampler",
    "KeptReader": "workerlib.keeping.kept_storage",
    "KeptWriter": "workerlib.keeping.kept_storage",
    "checkpointed": "workerlib.keeping.checkpoints",
    "elastic": "workerlib.in_place",
    "global_batch": "workerlib.micro_batches",
    "rounds": "workerlib.in_place",
    "sampler": "workerlib.sampler",
    "should_checkpoint": "workerlib.keeping.checkpoints",
}
"""The module of each name that is loaded when a script first uses it: these modules take time to import, or need torch.
`sampler` is that module itself, for `workerlib.sampler.Remainder`."""


def __getattr__(name: str) -> Any:
    """Load a name at its first use, and bind it, so that this is called once for each name."""
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_AT_FIRST_USE[name])
    value = globals()[name] = getattr(module, name, module)
    return value


def __dir__() -> list[str]:
    """Return the public names, also those that are not loaded yet."""
    return __all__
