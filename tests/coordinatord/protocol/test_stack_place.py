"""The line of a script at which a stack stands."""

from __future__ import annotations

import pytest

from coordinatord.protocol.stack_place import Frame, find_place

LIBRARY: tuple[Frame, ...] = (("wait", "threading.py", "359"), ("DataLoader.__next__", "torch/data.py", "733"))
MAIN: Frame = ("main", "/srv/train.py", "41")
BEGIN: Frame = ("<module>", "/srv/train.py", "60")
RUN: Frame = ("_run_code", "<frozen runpy>", "88")


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        pytest.param((*LIBRARY, MAIN, BEGIN), ("DataLoader.__next__", "/srv/train.py", "41"), id="in a library"),
        pytest.param((MAIN, BEGIN), MAIN, id="in the script itself"),
        pytest.param(
            (
                ("recv", "torch/distributed/distributed_c10d.py", "2740"),
                ("_exception_logger.<locals>.wrapper", "torch/distributed/c10d_logger.py", "83"),
                MAIN,
                BEGIN,
            ),
            ("recv", *MAIN[1:]),
            id="a decorator is not what the script has called",
        ),
        pytest.param(
            (
                ("Linear.forward", "torch/nn/modules/linear.py", "134"),
                ("DistributedDataParallel.forward", "torch/nn/parallel/distributed.py", "1668"),
                ("_call_impl", "torch/nn/modules/module.py", "1789"),
                ("Module._wrapped_call_impl", "torch/nn/modules/module.py", "1778"),
                MAIN,
                BEGIN,
            ),
            ("DistributedDataParallel.forward", *MAIN[1:]),
            id="nor is what calls the forward of a module",
        ),
        pytest.param(
            (("wrapper", "lib/x.py", "1"), ("decorate_context", "torch/utils/_contextlib.py", "124"), MAIN, BEGIN),
            ("decorate_context", *MAIN[1:]),
            id="where nothing else is known, a decorator is better than nothing",
        ),
        pytest.param(
            (*LIBRARY, ("load", "/srv/data/sets.py", "7"), MAIN, BEGIN),
            ("DataLoader.__next__", "/srv/data/sets.py", "7"),
            id="in a module below its folder",
        ),
        pytest.param(
            (*LIBRARY, ("load", "/srvx/sets.py", "7"), MAIN, BEGIN),
            ("load", "/srv/train.py", "41"),
            id="elsewhere",
        ),
        pytest.param(
            (*LIBRARY, MAIN, BEGIN, RUN), ("DataLoader.__next__", "/srv/train.py", "41"), id="run as a module"
        ),
        pytest.param(
            (MAIN, BEGIN, RUN, ("main", "/opt/bin/start", "3"), ("<module>", "/opt/bin/start", "9")),
            MAIN,
            id="run by another program",
        ),
        pytest.param(
            (("make", "/lib/x.py", "2"), ("<module>", "/lib/x.py", "1"), MAIN, BEGIN),
            ("<module>", *MAIN[1:]),
            id="imports",
        ),
        pytest.param((("...", "", ""), MAIN, BEGIN), MAIN, id="of what was left out nothing is known"),
        pytest.param(
            (*LIBRARY, ("<module>", "/home/ada/nodeclient/runpy_tests/train.py", "3")),
            ("DataLoader.__next__", "/home/ada/nodeclient/runpy_tests/train.py", "3"),
            id="in folders that are called as what runs scripts",
        ),
        pytest.param(
            (*LIBRARY, ("<module>", "/opt/nodeclient/forkserver/hook/sitecustomize.py", "9")),
            LIBRARY[0],
            id="before the script",
        ),
        pytest.param(LIBRARY, LIBRARY[0], id="no script"),
        pytest.param((), None, id="no frame"),
    ],
)
def test_the_innermost_own_line_is_found_and_what_it_has_called(frames: tuple[Frame, ...], place: Frame | None) -> None:
    assert find_place(frames) == place
