"""Serves `GET /metrics` for Prometheus: the metrics of the daemon, of jobs and of the process.

A scrape, one request of Prometheus, reads the state of all jobs in small pieces, so that heartbeats are answered in
between. A thread formats the text.
"""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from coordinatord.protocol.messages import RefusalCode
from coordinatord.runtime import __version__
from coordinatord.security.setup import Security
from coordinatord.server.counters import Counters
from coordinatord.server.driver import Driver, iterate_jobs
from coordinatord.server.metrics.jobs import JobFigures, JobsCollector, figures_of
from coordinatord.server.metrics.rounds import RoundMeter

LEADING, LEADING_MEANS = "coordinatord_leading", "1 for the coordinator that decides, 0 for a standby."
"""Name and help text of the only metric of a standby."""


class Metrics:
    """The metrics of one server, with a registry of its own, since a process may have two servers."""

    def __init__(self, driver: Driver, counters: Counters, security: Security | None) -> None:
        """Begin with the restored machine, before the driver starts. Without `security` no request is denied."""
        self._driver = driver
        self._rounds = RoundMeter(driver.machine.jobs.values())
        driver.durable_records.watchers.append(self._rounds.on_records)
        self._jobs = JobsCollector()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        """Formats one scrape at a time, to limit the CPU time that clients without a pause between scrapes can use. A
        scrape is formatted to the end, also if its client has gone."""
        self._registry = CollectorRegistry()
        rounds = self._rounds
        histograms = (counters.commits, counters.lag, rounds.formation, rounds.start, rounds.recovery)
        for collector in (_Daemon(driver, counters, security), self._jobs, *histograms):
            self._registry.register(collector)
        for collect in (ProcessCollector, PlatformCollector, GCCollector):
            collect(registry=self._registry)
        self.routes = [web.get("/metrics", self._show)]

    def close(self) -> None:
        """Stop formatting metrics."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _show(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        jobs = await self._read_jobs()
        text = await asyncio.get_running_loop().run_in_executor(self._thread, self._encode, encode, jobs)
        return web.Response(body=text, headers={"Content-Type": content_type})

    async def _read_jobs(self) -> list[JobFigures]:
        driver, tally = self._driver, self._rounds.tally
        return [figures_of(run, tally(run.job), driver.now) async for run in iterate_jobs(driver)]

    def _encode(self, encode: Callable[[Collector], bytes], jobs: Sequence[JobFigures]) -> bytes:
        """Format metrics with the figures of jobs, in the thread and without garbage collections.

        A thousand jobs need 100,000 short-lived objects. They would trigger a collection of all old objects, which
        blocks the event loop for a third of a second with 10,000 nodes.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        self._jobs.jobs = jobs
        try:
            return encode(self._registry)
        finally:
            self._jobs.jobs = ()
            if was_enabled:
                gc.enable()


@dataclass(slots=True, eq=False)
class _Daemon(Collector):
    """Makes the metric families that belong to no job."""

    _driver: Driver
    _counters: Counters
    _security: Security | None

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families; reading plain numbers is safe in any thread."""
        machine, counters = self._driver.machine, self._counters
        yield InfoMetricFamily("coordinatord_build", "Which coordinatord this is.", {"version": __version__})
        yield GaugeMetricFamily("coordinatord_sessions", "Nodes that are connected.", machine.sessions)
        drained = len(machine.cluster.durable.drained)
        yield GaugeMetricFamily("coordinatord_drained", "Nodes and hosts that operators keep out of jobs.", drained)
        yield GaugeMetricFamily(LEADING, LEADING_MEANS, 1)
        shared = self._driver.sharing.status()
        standbys = math.nan if shared is None or shared.problem else len(shared.standbys)
        meaning = "Coordinators that stand by; NaN if their number is not known, or if the store is not shared."
        yield GaugeMetricFamily("coordinatord_standbys", meaning, standbys)
        left_s = math.nan if shared is None else shared.lease_s
        meaning = "The remaining time of the leader's lease; NaN if the store is not shared."
        yield GaugeMetricFamily("coordinatord_lease_seconds", meaning, left_s)
        recording = machine.store_error is None
        yield GaugeMetricFamily("coordinatord_store_ok", "1 if decisions can be recorded, else 0.", recording)
        yield CounterMetricFamily(
            "coordinatord_store_failures", "Failed attempts to write records.", counters.store_failures
        )
        yield CounterMetricFamily("coordinatord_heartbeats", "Heartbeats that nodes have sent.", counters.heartbeats)
        security = self._security
        denied = 0 if security is None else security.gatekeeper.denied
        meaning = "Rejected callers: without a sufficient token, or with a bad certificate."
        yield CounterMetricFamily("coordinatord_denied", meaning, denied)
        expires_at = math.inf if security is None else security.expires_at
        meaning = "When the certificate in use expires, in seconds since 1970; +Inf if it never does."
        yield GaugeMetricFamily("coordinatord_certificate_expiry_timestamp_seconds", meaning, expires_at)
        warned_at = math.inf if security is None else security.expires_soon_at
        meaning = "When warnings of that begin, in seconds since 1970; +Inf if they never do."
        yield GaugeMetricFamily("coordinatord_certificate_warning_timestamp_seconds", meaning, warned_at)
        refused = CounterMetricFamily(
            "coordinatord_refused", "Messages that ended a node's session, by reason.", labels=["code"]
        )
        for code in RefusalCode:
            refused.add_metric([code], counters.refused[code])
        yield refused
