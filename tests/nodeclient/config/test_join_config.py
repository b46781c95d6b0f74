"""The digest by which the commands of trainings are told apart."""

import pytest

from coordinatord.protocol.messages import DIGEST_LETTERS
from nodeclient.config.join_config import command_digest


def test_commands_are_told_apart_and_which_python_runs_them_makes_no_difference() -> None:
    digest = command_digest(("/opt/a/bin/python3", "train.py", "--lr", "0.1"))
    assert digest == command_digest(("python", "train.py", "--lr", "0.1"))
    others = (("python", "train.py", "--lr", "0.2"), ("python", "train.py", "--lr 0.1"), ("bash", "train.py"))
    assert digest not in map(command_digest, others)


def test_a_digest_is_short_and_no_command_has_none() -> None:
    assert (len(command_digest(("python", "\udcff"))), command_digest(())) == (16, "")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("python -u /a/train.py --lr 0.1", "/opt/python /b/train.py --lr 0.2", True),
        ("python3 train.py", "/opt/python3.12 train.py", True),
        ("python train.py", "python tune.py", False),
        ("python -W ignore train.py", "python -W ignore tune.py", False),
        ("python -E train.py", "python -E tune.py", False),
        ("python -m pkg.train", "python -m pkg.tune", False),
        ("python -c 1", "python -c 2", True),
        ("./train host1.yaml", "./train host2.yaml", True),
        ("python", "bash", False),
    ],
)
def test_scripts_are_told_apart_where_it_is_known_which_argument_is_one(one: str, other: str, same: bool) -> None:
    scripts = [command_digest(command.split())[:DIGEST_LETTERS] for command in (one, other)]
    assert (scripts[0] == scripts[1]) is same
