"""A user's home, a state directory and what runs there, as all of it is by default: encrypted, and with tokens."""

import subprocess
from contextlib import ExitStack
from pathlib import Path

from coordinatord.protocol.access_token import Role, parse_tokens
from tests.support.cluster import STDLIB_PYTHON
from tests.support.programs import BIN, Program, as_by_default, clean_environ, run


class Place:
    """A user's home, a state directory, and the programs that run there."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.environ = clean_environ(**as_by_default(folder / "config"), XDG_STATE_HOME=str(folder / "nodes"))
        self.stranger = clean_environ(COORDINATORD_INSECURE="")
        """The environment of somebody without a token."""
        self.state = folder / "state"
        self.endpoint = ""
        self.output: list[str] = []
        self._stack = stack

    def coordinator(self, *flags: str) -> Program:
        """Start a coordinator, as it is by default but for flags, and wait until it serves."""
        return self.serve(BIN / "coordinatord", *flags)

    def serve(self, *program_and_flags: str | Path) -> Program:
        """Do the same with another program."""
        where = ("--host", "127.0.0.1", "--port", "0", "--state-dir", self.state)
        program = self.start(*program_and_flags, *where, environ=self.environ)
        self.endpoint = program.await_line(r"coordinatord listening on https?://(\S+)")[1]
        return program

    def start(self, *argv: str | Path, environ: dict[str, str] | None = None) -> Program:
        """Start a program of this user, or in another environment."""
        program = Program(*argv, environ=environ or self.environ)
        self._stack.callback(program.close)
        return program

    def node(self, *flags: str, environ: dict[str, str] | None = None, script: str = "") -> Program:
        """Start a node whose worker runs a line of Python."""
        join: tuple[str | Path, ...] = (BIN / "nodeclient", "join", "--coord", self.endpoint, "--job-id", "j", *flags)
        return self.start(*join, "--", *STDLIB_PYTHON, "-c", script or "print('done')", environ=environ)

    def ask(self, *argv: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command of nodeclient to its end."""
        verb, *rest = argv
        done = run(BIN / "nodeclient", verb, "--coord", self.endpoint, *rest, environ=environ or self.environ)
        self.output += [done.stdout, done.stderr]
        return done

    def token(self, *argv: str) -> str:
        """Run `coordinatord token`, and return what it prints."""
        done = run(BIN / "coordinatord", "token", *argv, "--state-dir", self.state, environ=self.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def secrets(self) -> dict[Role, str]:
        """The secrets of the first start, by role."""
        [left] = (self.folder / "config" / "coordinatord" / "tokens").iterdir()
        return {token.role: token.secret for token in parse_tokens(left.read_text())}
