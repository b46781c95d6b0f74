"""Golden transcripts: scripts with what they led to written below each line, kept in `tests/golden`.

A line that begins in the first column is a command or a `#` comment; what is indented was written by `--rewrite`.
"""

from pathlib import Path
from typing import Protocol

from msgspec import convert
from msgspec.structs import asdict

from coordinatord.core.rounds.policy import Policy
from tests.support.script import Stage

FOLDER = Path(__file__).parent.parent / "golden"

SCRIPTS = sorted(FOLDER.glob("*.txt"))


class Player(Protocol):
    """What the lines of a script are played on."""

    def play(self, line: str) -> list[str]:
        """Play a line; return the lines to write below it."""


def staged(line: str) -> Stage:
    """Return a stage with the policy of a line such as `policy settle_s=2`."""
    values = dict(word.split("=") for word in line.split()[1:])
    return Stage(**asdict(convert(values, Policy, strict=False)))


def transcribe(text: str, player: Player | None = None) -> str:
    """Play a script, by default for the coordinator; return it with its outcome in place of any that it had."""
    lines: list[str] = []
    stage = player or Stage()
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if line.startswith("policy "):
            stage = staged(line)
        elif line and not line.startswith("#"):
            lines += stage.play(line)
    return "\n".join(lines) + "\n"


def compare(script: Path, actual: str, *, rewrite: bool) -> None:
    """Fail if a script as it is played now is another than the one that is kept, or write it anew."""
    if rewrite:
        script.write_text(actual)
    else:
        assert actual == script.read_text(), "read the difference; if it is right, run pytest with --rewrite"
