"""What nodeclient is told: flags over environment over defaults, in frozen records that are handed down.

`parse` reads a command line. Three of them start a node: `join` is ours, `torchrun_flags` has those of torchrun and of
torch.distributed.launch. They share `flags`, `flag_values` and `build`; `join_config` is what each of them comes to.
Only torchrun's have `torchrun_rendezvous`. What operators ask of a coordinator is in `operate`.
"""

from nodeclient.config.join_config import DEFAULT_JOB, SIGNALS, Endpoint, JoinConfig
from nodeclient.config.operate import CommandConfig, EventsConfig, OperateConfig, ReportConfig, StatusConfig, Verb
from nodeclient.config.parse import Config, CrashReplayConfig, parse

__all__ = [
    "DEFAULT_JOB",
    "SIGNALS",
    "CommandConfig",
    "Config",
    "CrashReplayConfig",
    "Endpoint",
    "EventsConfig",
    "JoinConfig",
    "OperateConfig",
    "ReportConfig",
    "StatusConfig",
    "Verb",
    "parse",
]
