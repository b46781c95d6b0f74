"""A real etcd for the tests of stores."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.etcd import EtcdCluster, await_cluster


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Run a cluster of one member; each test has a namespace of its own in it."""
    with closing(EtcdCluster(tmp_path_factory.mktemp("etcd"))) as cluster:
        asyncio.run(await_cluster(cluster.place("any")))
        yield cluster
