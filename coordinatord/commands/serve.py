"""`coordinatord` without a subcommand: opens the store, and imports the server while threads read the store.

The imports take half the time of a start. SQLite reads without Python's lock, so both go on at once.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from coordinatord.config.serve_flags import ServeConfig
from coordinatord.runtime import logs
from coordinatord.runtime.logs import fields
from coordinatord.runtime.process_limits import allow_many_files, load_thread_end
from coordinatord.store.database_store import MemoryStore, Store
from coordinatord.store.sqlite_store import SqliteStore

log = logging.getLogger(__name__)


def run(settings: ServeConfig) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises `StoreError` and `ListenError`."""
    gc.disable()  # until `daemon` turns it on: it would take a tenth of a start
    logs.configure(settings.log_level, "coordinatord", settings.log_format)
    if settings.file is not None:
        log.info("settings from %s", settings.file.absolute(), extra=fields("settings_read", file=settings.file))
    for remark in settings.remarks:
        log.warning("%s", remark, extra=fields("remark"))
    allow_many_files()  # each connection needs one
    load_thread_end()  # before connections take all descriptors: it opens a library
    store = _open_store(settings) if settings.shared is None else None
    with without_system_authorities():
        from coordinatord.commands import daemon  # noqa: PLC0415 - threads read the store meanwhile
    gc.freeze()  # what was imported lasts until the end: no collection has to look through it
    return daemon.run(settings, store)


def _open_store(settings: ServeConfig) -> Store:
    if settings.state_dir is None:
        log.info(
            "state is kept in memory only: a restart of coordinatord forgets the jobs", extra=fields("state_in_memory")
        )
        return MemoryStore()
    store = SqliteStore.open(settings.state_dir)
    store.read_ahead()
    log.info("state is kept in %s", settings.state_dir.absolute(), extra=fields("state_opened"))
    return store


@contextmanager
def without_system_authorities() -> Iterator[None]:
    """Prevent aiohttp's import from reading this host's CA certificates, for 0.08 s: only its client needs them."""
    variable = "SSL_CERT_FILE"
    before = os.environ.get(variable)
    os.environ[variable] = os.devnull
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
