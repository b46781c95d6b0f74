"""What nodeclient is told: flags over environment over defaults, in frozen records that are handed down.

Three doors lead to a node: `join` is ours, `run` is torchrun's, `launch` that of torch.distributed.launch. What they
share is in `flags` and `build`.
"""

from nodeclient.config.parse import parse
from nodeclient.config.records import DEFAULT_JOB, SIGNALS, Config, Endpoint, JoinConfig, StatusConfig

__all__ = ["DEFAULT_JOB", "SIGNALS", "Config", "Endpoint", "JoinConfig", "StatusConfig", "parse"]
