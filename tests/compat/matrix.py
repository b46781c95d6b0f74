"""Which versions of Python and torch are run, and which tests on them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """One version of Python, and one of torch; without torch, what needs none is run."""

    python: str
    torch: str | None = None

    def __str__(self) -> str:
        return f"py{self.python}" + (f"-torch{self.torch}" if self.torch else "")


MATRIX = (
    Pair("3.11", "2.4.1"),
    Pair("3.11", "2.15.0"),
    Pair("3.12", "2.4.1"),
    Pair("3.12", "2.13.0"),
    Pair("3.13", "2.15.0"),
    Pair("3.14", "2.15.0"),
)
"""The oldest and the newest torch that there is, beside the pinned one, and each Python that is maintained. torch 2.4
has no build for Python 3.13. The pinned pair, 3.11 and 2.13.0, is what `make test` runs."""

PYTHONS = ("3.12", "3.13", "3.14")
"""The versions other than the one that development is pinned to."""

PURE = (
    "tests/coordinatord/core",
    "tests/nodeclient/core",
    "tests/coordinatord/protocol",
    "-m",
    "not slow and not long",
)
"""The tests of the two machines and of what they say to each other, which need neither torch nor any program."""

NEAR_TORCH = (
    "tests/nodeclient/forkserver",
    "tests/nodeclient/torchrun",
    "tests/workerlib",
    "tests/nodeclient/config/test_torchrun_flags.py",
    "tests/nodeclient/diagnosis/test_hangs.py",
    "tests/nodeclient/diagnosis/test_stack_service.py",
    "tests/e2e/test_hangs.py",
    "tests/e2e/test_training.py",
    "tests/test_example_ddp.py",
)
"""The tests that torch is imported for, or compared with, and those of warm workers, which depend on how Python
starts. Those of hangs and lateness read torch's flight recorder, which is not public."""

SUITE = (
    "tests/coordinatord",
    "tests/nodeclient",
    "tests/workerlib",
    "tests/cli",
    "tests/e2e",
    "tests/test_example_ddp.py",
    "tests/test_example_digits.py",
)
"""The tests that may depend on Python or torch: not the simulation, systemd, containers, nor those that are only
slow."""

TOOLS = (
    "hatch-fancy-pypi-readme>=25.1",
    "hatchling>=1.27",
    "hypothesis>=6.100",
    "msgpack>=1.2.3",
    "pillow>=10",
    "pytest>=9",
    "pytest-asyncio>=1.5",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "pyyaml>=6",
    "safetensors>=0.4",
    "trustme>=1.2",
)
"""The packages that the tests need, beside the project's own requirements: as in pyproject, without the tools that
judge style."""

LEARNING = ("numpy", "scikit-learn>=1.5")
"""The packages that the examples need beside torch, which would bring a newer torch along if they were requested with
it."""
