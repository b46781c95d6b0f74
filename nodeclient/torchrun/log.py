"""Logs through a logger among torch's own, so that LOGLEVEL and torch's format apply."""

from __future__ import annotations

import logging
import os

from torch.distributed.elastic.utils.logging import get_logger

from nodeclient.core.effects import Level
from nodeclient.torchrun.parameters import with_torchrun_names

logger = get_logger("torch.distributed.elastic.rendezvous.coordinatord")

_LEVELS = {Level.INFO: logging.INFO, Level.WARNING: logging.WARNING, Level.ERROR: logging.ERROR}


def write_found(job: str, text: str) -> None:
    """Log at INFO which coordinator was found, even without LOGLEVEL, when torch logs only warnings.

    Otherwise nothing would distinguish jobs of this backend from those of another.
    """
    if "LOGLEVEL" in os.environ:
        write(job, Level.INFO, text)
    else:
        logger.handle(logger.makeRecord(logger.name, logging.INFO, __file__, 0, "job %s: %s", (job, text), None))


def write(job: str, level: Level, text: str) -> None:
    """Log a text of the node, with torchrun's names of flags."""
    logger.log(_LEVELS[level], "job %s: %s", job, with_torchrun_names(text))
