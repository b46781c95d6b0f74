"""`python -m tests.fuzz.guided TARGET [FLAGS of libFuzzer]`: one target under atheris, which is libFuzzer for Python.

What an input is taken apart by is instrumented, so that libFuzzer sees which branches each input takes, and mutates
those that take new ones. The process ends when the flags say that it is enough, or a property does not hold.
"""

from __future__ import annotations

import atexit
import sys

import atheris

WATCHED = [
    "coordinatord.core",
    "coordinatord.protocol",
    "coordinatord.runtime.pinned_tls",
    "coordinatord.runtime.websocket",
    "coordinatord.security",
    "nodeclient.core",
    "nodeclient.diagnosis.stack_text",
    "nodeclient.keeping.parts.part_messages",
    "nodeclient.keeping.disk",
    "workerlib.contract.channel_messages",
    "workerlib.contract.manifest",
]

with atheris.instrument_imports(include=WATCHED):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Play inputs."""
    _, name, *flags = sys.argv
    target = TARGETS[name]
    events = 0

    def play(data: bytes) -> None:
        nonlocal events
        events += target.play(data) or 0

    atexit.register(lambda: sys.stdout.write(f"events of sequences: {events}\n"))
    atheris.Setup([name, *flags], play)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
