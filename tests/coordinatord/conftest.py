"""A real etcd for the tests of stores, and logging that is as before after a test that configures it."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing

import pytest

from coordinatord.store.etcd import gateway
from tests.support.etcd import EtcdCluster, EtcdNamespace, await_cluster
from tests.support.programs import TIMEOUT_S


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Run a cluster of one member."""
    with closing(EtcdCluster(tmp_path_factory.mktemp("etcd"))) as cluster:
        asyncio.run(await_cluster(cluster.place("any")))
        yield cluster


@pytest.fixture
def space(etcd: EtcdCluster) -> EtcdNamespace:
    """Return an empty namespace in it."""
    return EtcdNamespace(etcd)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """Restore the logging of this process after a test that configures it."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logging.captureWarnings(False)
    logger.handlers[:], logger.level = handlers, level


@pytest.fixture(autouse=True)
def _patient_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for an etcd on a busy machine; it also hashes passwords slowly on purpose."""
    for limit in ("TRY_WITHIN_S", "CONNECT_WITHIN_S", "REQUEST_WITHIN_S"):
        monkeypatch.setattr(gateway, limit, TIMEOUT_S)
