"""The log of the backend: a logger among torch's own, so that LOGLEVEL and torch's format apply to it."""

from __future__ import annotations

import logging

from torch.distributed.elastic.utils.logging import get_logger

from nodeclient.core.effects import Level
from nodeclient.torchrun.parameters import with_torchrun_names

logger = get_logger("torch.distributed.elastic.rendezvous.coordinatord")

_LEVELS = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.ERROR: logging.ERROR}


def write(job: str, level: Level, text: str) -> None:
    """Log a text of the node, with torchrun's names of flags."""
    logger.log(_LEVELS[level], "job %s: %s", job, with_torchrun_names(text))
