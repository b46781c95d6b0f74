"""workerlib: the library with which a training script takes part in a job.

    import workerlib

    with workerlib.init() as ctx:
        model = DistributedDataParallel(Model().to(ctx.device))

`contract` is what a worker and nodeclient agree on. `init` reads its environment and prepares torch. `sampler` deals
out the samples of an epoch. `progress` reports steps and sections, and `record` an exception. `checkpoints` decides
when a script writes a checkpoint of its own, `stop` notes a signal that asks the worker to end, and `agreement` has all
workers agree on that. `keeping` keeps state that outlives the workers, also for `kept_storage`, which takes the place
of a disk under `torch.distributed.checkpoint`. `reuse` lets a worker outlive its round, for `elastic`, which calls a
script's function again with each. `responder` answers nodeclient where the worker stands, from the import of this
package on. `gloo` lets gloo's threads end before Python does, and `store`
is for scripts that expect a launcher's store. `integrations` has callbacks for frameworks. Importing this package
imports no torch.
"""

from typing import TYPE_CHECKING, Any

from workerlib import responder
from workerlib.agreement import should_stop
from workerlib.checkpoints import checkpointed, should_checkpoint
from workerlib.contract import recorders
from workerlib.contract.env import NotLaunchedError, WorkerEnvironment
from workerlib.elastic import elastic, rounds
from workerlib.init import Context, init
from workerlib.progress import section, step
from workerlib.record import record
from workerlib.sampler import ElasticDistributedSampler

if TYPE_CHECKING:
    from workerlib.kept_storage import KeptReader, KeptWriter

__all__ = [
    "Context",
    "ElasticDistributedSampler",
    "KeptReader",
    "KeptWriter",
    "NotLaunchedError",
    "WorkerEnvironment",
    "checkpointed",
    "elastic",
    "init",
    "record",
    "rounds",
    "section",
    "should_checkpoint",
    "should_stop",
    "step",
]


responder.start(recorders)


def __getattr__(name: str) -> Any:
    """Return `KeptReader` or `KeptWriter`. They derive from classes of torch, which is imported only here."""
    if name not in ("KeptReader", "KeptWriter"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from workerlib import kept_storage  # noqa: PLC0415 - see above

    return getattr(kept_storage, name)
