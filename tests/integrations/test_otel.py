"""The events of a real job as spans, with OpenTelemetry's own SDK, and as a collector gets them."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.integrations.conftest import EXAMPLES, need
from tests.support.cluster import STDLIB_PYTHON, Cluster
from tests.support.programs import BIN, clean_environ, run

pytestmark = need("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")

PROGRAM = EXAMPLES.parent / "otel_spans.py"

FAILS_ONCE = (*STDLIB_PYTHON, "-c", "import os, sys; sys.exit(3 * (os.environ['COORDINATORD_ROUND'] == '1'))")


@pytest.fixture
def lines(cluster: Cluster) -> list[str]:
    """Return what `nodeclient events --json` prints for a job with two rounds."""
    node = cluster.join("a", "--max-restarts", "1", command=FAILS_ONCE)
    assert node.wait() == 0
    events = (BIN / "nodeclient", "events", cluster.job, "--coord", cluster.coordinator.endpoint, "--json")
    return run(*events).stdout.splitlines()


def spans_of(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the spans that the program makes of events."""
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  # may be missing
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415  # as above
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415  # as above

    monkeypatch.syspath_prepend(PROGRAM.parent)
    import otel_spans  # noqa: PLC0415  # as above

    names, exporter = otel_spans.Names(), InMemorySpanExporter()
    provider = TracerProvider(id_generator=names)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel_spans.follow(lines, provider, names)
    return list(exporter.get_finished_spans())


def test_a_run_is_a_trace_and_its_rounds_are_spans(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    events = [json.loads(line) for line in lines]
    first, second, whole = spans_of(lines, monkeypatch)
    assert [span.name for span in (first, second, whole)] == ["round 1", "round 2", f"run {events[0]['job']}"]
    assert [span.parent and span.parent.span_id for span in (first, second)] == [whole.context.span_id] * 2
    assert whole.parent is None
    assert {span.context.trace_id for span in (first, second)} == {whole.context.trace_id}

    assert (whole.start_time, whole.end_time) == tuple(int(events[place]["at"] * 1e9) for place in (0, -1))
    assert whole.start_time < first.start_time < first.end_time <= second.start_time < second.end_time
    assert first.attributes["coordinatord.ended"] == "rank 0 on node a failed: exit code 3"
    assert whole.attributes["coordinatord.ended"] == "all workers succeeded"
    noted = [event.name for span in (whole, first, second) for event in span.events]
    assert sorted(noted) == sorted(event["what"] for event in events), "each event is in one span"
    assert [event.name for event in first.events] == ["round formed", "round started", "round stopped", "round ended"]


def test_the_same_events_are_the_same_spans(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [[(span.context.trace_id, span.context.span_id) for span in spans_of(lines, monkeypatch)] for _ in range(2)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == len(ids[0])


def test_events_of_no_job_and_of_jobs_that_are_forgotten_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"job": "", "run": "", "kind": "NodeDrained", "what": "node drained", "round": None, "node": "a"}
    forgotten = {**other, "job": "mnist", "run": "ab-1", "kind": "JobForgotten"}
    assert spans_of([json.dumps({**event, "at": 1.0, "reason": ""}) for event in (other, forgotten)], monkeypatch) == []


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Serve what an OpenTelemetry collector serves; yield where, and what it is sent."""
    sent: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()
        thread.join()


def test_a_collector_gets_them(lines: list[str]) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: PLC0415

    with collector() as (url, sent):
        environ = clean_environ(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_EXPORTER_OTLP_COMPRESSION="none")
        done = run(sys.executable, PROGRAM, environ=environ, words="\n".join(lines))
    assert (done.returncode, done.stderr) == (0, "")
    [batch] = [ExportTraceServiceRequest.FromString(content) for content in sent]
    [resource] = batch.resource_spans
    assert {"coordinatord"} == {
        attribute.value.string_value for attribute in resource.resource.attributes if attribute.key == "service.name"
    }
    assert [span.name for span in resource.scope_spans[0].spans][:2] == ["round 1", "round 2"]
