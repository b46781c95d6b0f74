"""The settings of nodeclient: flags over environment over defaults, in frozen records that are handed down.

`parse` reads a command line. Three command lines start a node: that of `join` is ours, `torchrun_flags` has those of
torchrun and of torch.distributed.launch. They share `flags`, `flag_values` and `build`; `join_config` is the result of
each. Only torchrun's have `torchrun_rendezvous`. `operate` has the commands for operators.
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
