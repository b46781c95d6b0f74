"""What all tests share: their order, an environment, the tree, and the option to write expected texts anew."""

import faulthandler
import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.programs import forget_ended, output_of_all
from tests.support.source import Source, sources

LONGEST = (
    "tests/test_demo.py",
    "tests/test_example_imagenet.py",
    "tests/test_example_digits.py",
    "tests/nodeclient/forkserver/test_training.py",
    "tests/nodeclient/torchrun/test_torchrun.py",
    "tests/nodeclient/forkserver/test_ends.py",
    "tests/e2e/test_training.py",
    "tests/systemd/test_machine.py",
    "tests/chaos/",
    "tests/surroundings/test_networks.py",
    "tests/workerlib/keeping/test_gate.py",
)
"""Where single tests take many seconds, the longest first. None of these is to begin when all others are done."""


CLEAN_UP_S = 300.0
"""Bound on all that is cleaned up after a test that failed: its programs end within a wait or two."""

USER_PLACES = pytest.StashKey[Path]()
"""The folder that stands for the user's own places."""


MODULE_MARKS = re.compile(r"^pytestmark = .*", re.MULTILINE)
"""What a module says of all its tests."""

STARTS = ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
"""The audit events (https://docs.python.org/3/library/audit_events.html) of a program, or of a copy of this one."""

OURS = ("coordinatord", "nodeclient")
"""The folders of our programs in such places."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite`."""
    parser.addoption("--rewrite", action="store_true", help="write golden transcripts and printed tables anew")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the process.

    What programs keep for their user goes into a folder that ends with the tests. The certificates of the system are
    hidden: aiohttp reads them all at its import, 30 ms for each of many programs. Hypothesis draws the same examples
    each time and looks at no clock: how long one takes is the machine's affair. torch computes in one thread: several
    of them spin while they wait for each other, and take ten times as long on a machine that has other work.
    """
    places = tempfile.TemporaryDirectory(prefix="coordinatord-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(places.cleanup)
    config.stash[USER_PLACES] = Path(places.name)
    for place in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        os.environ[place] = places.name
    os.environ["SSL_CERT_FILE"] = os.devnull
    os.environ["OMP_NUM_THREADS"] = "1"
    settings.load_profile("ci")
    gc.disable()


def pytest_collection(session: pytest.Session) -> None:
    """Watch the quick tests from here on, but not xdist's first process, which starts others and runs no test."""
    if _is_quick(session.config) and session.config.option.dist == "no":
        sys.addaudithook(_refuse_what_is_slow)


def _is_quick(config: pytest.Config) -> bool:
    return "not slow" in config.option.markexpr


def _refuse_what_is_slow(event: str, args: tuple[object, ...]) -> None:
    """Fail the test, or the import of the module, that is about to do what takes seconds."""
    if event in STARTS or (event == "import" and args[0] == "torch"):
        doing = "imports torch" if event == "import" else "starts a program"
        pytest.fail(f"this {doing}, so mark it `slow`: `make quick` runs no such test")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out, unread, the modules of which no test is selected: many of them import torch."""
    if collection_path.suffix == ".py" and (marks := MODULE_MARKS.search(collection_path.read_text())):
        left_out = re.findall(r"not (\w+)", config.option.markexpr)
        if any(f"mark.{name}" in marks[0] for name in left_out):
            return True
    return None


def pytest_runtest_setup() -> None:
    """Begin anew to collect what programs say."""
    forget_ended()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the programs of a test that failed have said: now, since xdist sends the report away next."""
    report = yield
    if report.failed:
        report.sections += output_of_all()
    return report


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Set the clock again that pytest stops when a test fails: its clean-up must not hang for ever either."""
    if isinstance(report, pytest.TestReport):
        faulthandler.dump_traceback_later(CLEAN_UP_S, exit=True, file=2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take long, so that with several workers all have something to do until the end."""
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    """Look for garbage from now on, and not among the million objects that five thousand tests and torch consist of."""
    gc.freeze()
    gc.enable()


def _place(item: pytest.Item) -> tuple[int, bool]:
    beginnings = enumerate(LONGEST)
    place = next((number for number, beginning in beginnings if item.nodeid.startswith(beginning)), len(LONGEST))
    return place, item.get_closest_marker("slow") is None


@pytest.fixture(scope="session", autouse=True)
def _signals_end_programs() -> None:
    """Handle what a shell, cron or nohup has pytest ignore: a program inherits what is ignored, but no handler."""
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(signum) is signal.SIG_IGN:
            handler = signal.default_int_handler if signum is signal.SIGINT else lambda *_: None
            signal.signal(signum, handler)


@pytest.fixture(autouse=True)
def _nothing_left_at_the_user(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have a test that leaves state or tokens where its user keeps them name a place of its own instead."""
    yield
    places = request.config.stash[USER_PLACES]
    left = [path for program in OURS for path in places.glob(f"**/{program}/**/*") if path.is_file()]
    for path in left:
        path.unlink(missing_ok=True)
    assert not left, f"left where the user keeps things: {left}"


@pytest.fixture
def collects_nothing() -> Iterator[None]:
    """Collect no garbage, as a program that starts, unless the test turns that on.

    At the limit of recursion, finalizers of any object would fail. Where calls are counted, they are calls, too.
    """
    threshold = gc.get_threshold()
    gc.disable()
    yield
    gc.set_threshold(*threshold)
    gc.enable()


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether expected texts are to be written anew instead of compared."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(scope="session")
def tree() -> list[Source]:
    """Return all files of the tree, parsed before anybody looks for garbage: among so many nodes that takes longest."""
    gc.disable()
    found = sources()
    for source in found:
        if source.is_python:
            _ = source.tree
    gc.freeze()
    gc.enable()
    return found
