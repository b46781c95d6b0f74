"""Spans for OpenTelemetry: each run of a job is a trace, each of its rounds a span, with the events of the coordinator.

    pip install '.[otel]'
    export OTEL_EXPORTER_OTLP_ENDPOINT=http://COLLECTOR:4318
    nodeclient events --coord HOST --follow --last 1000 --json | python examples/otel_spans.py

A span is sent when it has ended. The ids of spans follow from the names of runs and the numbers of rounds, so that no
span exists twice if this program is started again and reads the same events.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Span, set_span_in_context

Event = Mapping[str, Any]
"""A line of `nodeclient events --json`; coordinatord/protocol/http/api.py has its fields (`ApiEvent`)."""


class Names(IdGenerator):
    """Generates the ids of spans from their names."""

    def __init__(self) -> None:
        self.next = ""
        """The name of the next span."""

    def generate_span_id(self) -> int:
        """Return 64 bits."""
        return int.from_bytes(hashlib.sha256(self.next.encode()).digest()[:8], "big")

    def generate_trace_id(self) -> int:
        """Return 128 bits; this is called for runs only, since rounds have the trace of their run."""
        return int.from_bytes(hashlib.sha256(self.next.encode()).digest()[:16], "big")


class Spans:
    """Makes the spans of all runs that have not ended."""

    def __init__(self, provider: TracerProvider, names: Names) -> None:
        self._tracer = provider.get_tracer("coordinatord")
        self._names = names
        self._runs: dict[str, Span] = {}
        self._rounds: dict[str, tuple[int, Span]] = {}
        """The number and the span of each run's last round."""

    def add(self, event: Event) -> None:
        """Begin and end spans by an event, and add the event to its span."""
        run, kind, at = event["run"], event["kind"], int(event["at"] * 1e9)
        if not run or kind == "JobForgotten":  # events of no job, such as drained nodes; and the end of a job
            self._runs.pop(run, None)
            return
        if run not in self._runs:
            self._runs[run] = self._begin(f"run {event['job']}", run, at, event)
        if kind == "RoundFormed":
            self._end_round(run, at)
            name = f"round {event['round']}"
            self._rounds[run] = event["round"], self._begin(name, f"{run} {name}", at, event, self._runs[run])
        number, span = self._rounds.get(run, (None, None))
        parent = span if span is not None and event["round"] in {None, number} else self._runs[run]
        attributes = {name: event[name] for name in ("node", "reason") if event[name] is not None}
        parent.add_event(event["what"], attributes, at)
        if kind in {"RoundEnded", "RunEnded"}:
            self._end_round(run, at, event["reason"])
        if kind == "RunEnded":
            self._end(self._runs.pop(run), at, event["reason"])

    def _begin(self, name: str, id_from: str, at: int, event: Event, parent: Span | None = None) -> Span:
        self._names.next = id_from
        attributes = {
            "coordinatord.job": event["job"],
            "coordinatord.run": event["run"],
            "coordinatord.why": event["reason"],
        }
        context = None if parent is None else set_span_in_context(parent)
        return self._tracer.start_span(name, context, attributes=attributes, start_time=at)

    def _end_round(self, run: str, at: int, reason: str = "") -> None:
        _, span = self._rounds.pop(run, (None, None))
        if span is not None:
            self._end(span, at, reason)

    def _end(self, span: Span, at: int, reason: str) -> None:
        span.set_attribute("coordinatord.ended", reason)
        span.end(at)


def follow(lines: Iterable[str], provider: TracerProvider, names: Names) -> None:
    """Turn events into spans as they come."""
    spans = Spans(provider, names)
    for line in lines:
        spans.add(json.loads(line))


def main() -> None:
    """Send the spans of the events on standard input, until it ends."""
    names = Names()
    provider = TracerProvider(id_generator=names, resource=Resource.create({"service.name": "coordinatord"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        follow(sys.stdin, provider, names)
    except KeyboardInterrupt:
        pass  # spans that have ended are still sent
    finally:
        provider.shutdown()


if __name__ == "__main__":
    main()
