"""What a worker finds when it begins is the same cold and warm, in whatever way its program is given to Python."""

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nodeclient.forkserver.support import DESCRIBE, Stage, assert_same_start, python

pytestmark = pytest.mark.slow


PROGRAM = DESCRIBE.replace("import describe", "import mine, describe")
"""It has a module of its own beside it, which is preloaded."""


def script(stage: Stage) -> tuple[str, ...]:
    return python(stage.write("train.py", PROGRAM), "--lr", "0.1", "")


def relative(stage: Stage) -> tuple[str, ...]:
    stage.write("train.py", PROGRAM)
    return python("-u", "-X", "utf8", "-O", "train.py", "--", "-c")


def through_a_link(stage: Stage) -> tuple[str, ...]:
    stage.write("train.py", PROGRAM)
    stage.write("elsewhere/README", "")
    (stage.folder / "elsewhere" / "link.py").symlink_to("../train.py")
    return python("-X", "dev", "-W", "error", "-W", "ignore::UserWarning", "elsewhere/link.py")


def module(stage: Stage) -> tuple[str, ...]:
    stage.write("package/__init__.py", "above = __name__")
    stage.write("package/sibling.py", "known = 7")
    stage.write("package/training.py", f"from . import above\nfrom .sibling import known\n{PROGRAM}")
    return python("-m", "package.training", "-m", "x")


def package(stage: Stage) -> tuple[str, ...]:
    stage.write("package/__init__.py", "above = __name__")
    stage.write("package/__main__.py", f"from . import above\n{PROGRAM}")
    return python("-B", "-bb", "-mpackage", "--help")


def text(_: Stage) -> tuple[str, ...]:
    return python("-c", PROGRAM, "-c", "x y")


def directory(stage: Stage) -> tuple[str, ...]:
    stage.write("program/__main__.py", PROGRAM)
    return python("program/", "x")


def archive(stage: Stage) -> tuple[str, ...]:
    path = stage.folder / "program.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("__main__.py", PROGRAM)
        file.writestr("mine.py", "place = 'archive'")
    return python("-P", path)


def other_python(stage: Stage) -> tuple[str, ...]:
    """Return a command whose Python has nothing of ours installed."""
    return (str(Path(sys.executable).resolve()), str(stage.write("train.py", PROGRAM)))


WAYS = (script, module, text)
"""Those that most scripts are given in."""

ODD_WAYS = (relative, through_a_link, package, directory, archive, other_python)


@pytest.mark.parametrize(
    "way", [*WAYS, *(pytest.param(way, marks=pytest.mark.long) for way in ODD_WAYS)], ids=lambda way: way.__name__
)
def test_a_program_finds_the_same(stage: Stage, way: Callable[[Stage], tuple[str, ...]]) -> None:
    for place in (".", "elsewhere", "package", "program"):
        stage.write(f"{place}/mine.py", f"place = {place!r}")
    assert_same_start(*stage.both(*way(stage), preload="json,mine"))


@pytest.mark.long
def test_a_program_from_standard_input_finds_the_same(stage: Stage) -> None:
    # Python chooses a locale itself where there is none, and passes it on to programs that it starts.
    environ = {"LANG": "", "LC_ALL": "", "LC_CTYPE": "", "MUCH": "x" * 20_000}
    cold, warm = stage.both(*python("-", "x"), words=DESCRIBE, environ=environ)
    assert cold.facts[0]["environ"]["LC_CTYPE"] == "C.UTF-8"
    assert_same_start(cold, warm)
