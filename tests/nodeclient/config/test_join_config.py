"""The digest by which the commands of trainings are told apart."""

from __future__ import annotations

from nodeclient.config.join_config import command_digest


def test_commands_are_told_apart_and_where_the_program_lies_makes_no_difference() -> None:
    digest = command_digest(("/opt/a/bin/python", "train.py", "--lr", "0.1"))
    assert digest == command_digest(("python", "train.py", "--lr", "0.1"))
    others = (("python", "train.py", "--lr", "0.2"), ("python", "train.py", "--lr 0.1"), ("bash", "train.py"))
    assert digest not in map(command_digest, others)


def test_a_digest_is_short_and_no_command_has_none() -> None:
    assert (len(command_digest(("python", "\udcff"))), command_digest(())) == (8, "")
