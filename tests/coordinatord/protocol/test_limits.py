"""What is legal fits: into a frame, into an exit code, and into a few hundred bytes where it is ordinary."""

from typing import Any

import pytest

from coordinatord.protocol.codec import encode
from coordinatord.protocol.exit_codes import describe_exit, shell_exit_code, signal_behind
from coordinatord.protocol.fields import COUNTER_MAX, RANKS_MAX, STEP_MAX, WORKERS_MAX
from coordinatord.protocol.messages import FRAME_BYTES_MAX, Desired, Goal, Join, Observed, Phase
from coordinatord.protocol.text import TEXT_MAX, clip
from tests.support.builders import a_desired, an_assignment, an_observed
from tests.support.messages import MESSAGES, largest

LIMITS = dict.fromkeys(MESSAGES, FRAME_BYTES_MAX) | {Desired: 238 * 1024, Join: 252 * 1024}
"""Those of the last two are as `FRAME_BYTES_MAX` says."""


@pytest.mark.parametrize(
    ("kind", "goal"), [*((kind, Goal.EXIT) for kind in MESSAGES), *((Desired, each) for each in Goal)]
)
def test_the_largest_legal_message_fits_a_frame(kind: type[Any], goal: Goal) -> None:
    assert len(encode(largest(kind, goal))) <= LIMITS[kind]


def test_the_largest_report_has_a_step_of_each_worker() -> None:
    assert len(largest(Observed).steps) == WORKERS_MAX


def test_a_heartbeat_of_eight_workers_takes_a_packet() -> None:
    message = an_observed(
        run="1763698800-12",
        round=COUNTER_MAX,
        phase=Phase.RUNNING,
        heard_s=1.0,
        beat=True,
        steps=(STEP_MAX,) * 8,
        step_age_s=0.1,
        pids=(2**22,) * 8,  # the most that Linux gives
    )
    assert len(encode(message)) < 370


def test_an_assignment_takes_less_than_a_kilobyte_however_large_the_job_is() -> None:
    message = a_desired(
        Goal.RUN,
        run="1763698800-12",
        round=COUNTER_MAX,
        reason="lost node trainer-17; workers on 511 other nodes failed in consequence; formed of nodes "
        + ", ".join(f"trainer-{number}" for number in range(8))
        + " and 504 more",
        assignment=an_assignment(
            group_rank=RANKS_MAX,
            group_world_size=RANKS_MAX,
            first_rank=RANKS_MAX,
            world_size=RANKS_MAX,
            first_role_rank=RANKS_MAX,
            role_world_size=RANKS_MAX,
            master_address="fd12:3456:789a:bcde:f012:3456:789a:bcde",
        ),
    )
    assert len(encode(message)) < 1024


def test_a_clipped_text_is_legal_and_shows_that_it_was_longer() -> None:
    assert clip("x" * TEXT_MAX) == "x" * TEXT_MAX
    clipped = clip("x" * (TEXT_MAX + 1))
    assert len(clipped) == TEXT_MAX
    assert clipped.endswith("x...")


def test_every_legal_exit_code_of_a_worker_makes_a_legal_one_of_a_program() -> None:
    codes = {code: shell_exit_code(code) for code in range(-127, 256)}
    assert all(0 <= shell <= 255 for shell in codes.values())
    assert [code for code, shell in codes.items() if shell == 0] == [0]


@pytest.mark.parametrize(
    ("exit_code", "words", "shell", "signum"),
    [
        (0, "exit code 0", 0, None),
        (3, "exit code 3", 3, None),
        (-9, "killed by SIGKILL", 137, 9),
        (-15, "killed by SIGTERM", 143, 15),
        (-100, "killed by signal 100", 228, 100),
        (137, "exit code 137, a shell's code for SIGKILL", 137, 9),
        (143, "exit code 143, a shell's code for SIGTERM", 143, 15),
        (128, "exit code 128", 128, None),
        (255, "exit code 255", 255, None),
    ],
)
def test_an_exit_is_said_in_words_and_as_a_shell_has_it(
    exit_code: int, words: str, shell: int, signum: int | None
) -> None:
    assert describe_exit(exit_code) == words
    assert shell_exit_code(exit_code) == shell
    assert signal_behind(exit_code) == signum
