"""What nodeclient is told: flags over environment over defaults, in frozen records that are handed down.

Three doors lead to a node: `join` is ours, `run` is torchrun's, `launch` that of torch.distributed.launch. What they
share is in `flags` and `build`. What operators ask of a coordinator is in `operate`.
"""

from nodeclient.config.operate import CommandConfig, EventsConfig, OperateConfig, ReportConfig, StatusConfig, Verb
from nodeclient.config.parse import Config, parse
from nodeclient.config.records import DEFAULT_JOB, SIGNALS, Endpoint, JoinConfig

__all__ = [
    "DEFAULT_JOB",
    "SIGNALS",
    "CommandConfig",
    "Config",
    "Endpoint",
    "EventsConfig",
    "JoinConfig",
    "OperateConfig",
    "ReportConfig",
    "StatusConfig",
    "Verb",
    "parse",
]
