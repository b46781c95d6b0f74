"""Golden transcripts: scripts with what they led to written below each line, kept in `tests/golden`.

A line that begins in the first column is a command or a `#` comment; what is indented was written by `--rewrite`.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.script import Stage

FOLDER = Path(__file__).parent.parent / "golden"

SCRIPTS = sorted(FOLDER.glob("*.txt"))


def transcribe(text: str) -> str:
    """Play a script; return it with its outcome in place of any that it had."""
    lines: list[str] = []
    stage = Stage()
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if line.startswith("policy "):
            stage = Stage(**{name: float(value) for name, value in (word.split("=") for word in line.split()[1:])})
        elif line and not line.startswith("#"):
            lines += stage.play(line)
    return "\n".join(lines) + "\n"
