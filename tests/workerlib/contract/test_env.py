"""The environment contract: what one side writes the other reads, and damage is named."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlib import NotLaunchedError, WorkerEnvironment
from workerlib.contract.env import DEFAULTS

EXAMPLE = WorkerEnvironment(
    rank=5,
    local_rank=1,
    world_size=8,
    local_world_size=2,
    group_rank=2,
    group_world_size=4,
    role="trainer",
    role_rank=5,
    role_world_size=8,
    master_address="10.0.0.7",
    master_port=40123,
    restart_count=1,
    max_restarts=3,
    job="mnist",
    run="4f1c",
    round=7,
    node="host-3",
    worker=1,
    reason="node host-2 was lost",
)

TORCHRUN = {name: value for name, value in EXAMPLE.to_environ().items() if not name.startswith("COORDINATORD_")}

_numbers = st.integers(0, 2**31 - 1)
_words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
_environments = st.builds(
    WorkerEnvironment,
    **{field.name: _numbers if field.type == "int" else _words for field in fields(WorkerEnvironment)},
)


@given(_environments)
def test_what_is_written_is_read_back(environment: WorkerEnvironment) -> None:
    assert WorkerEnvironment.from_environ(environment.to_environ()) == environment


def test_the_reason_may_be_empty() -> None:
    environment = replace(EXAMPLE, reason="")
    assert WorkerEnvironment.from_environ(environment.to_environ()) == environment


def test_torchs_contract_is_written_in_full() -> None:
    assert TORCHRUN == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "2",
        "ROLE_RANK": "5",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "8",
        "GROUP_WORLD_SIZE": "4",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "40123",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "mnist",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    assert DEFAULTS == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}


def test_a_process_started_by_torchrun_can_be_read() -> None:
    environment = WorkerEnvironment.from_environ(TORCHRUN)
    assert environment == replace(EXAMPLE, job="mnist", run="mnist", round=1, node="2", reason="")


@pytest.mark.parametrize("variable", sorted(TORCHRUN.keys() - {"TORCHELASTIC_USE_AGENT_STORE"}))
def test_a_missing_variable_is_named_with_what_to_do(variable: str) -> None:
    environ = {name: value for name, value in TORCHRUN.items() if name != variable}
    with pytest.raises(NotLaunchedError, match=rf"\b{variable} is missing.*nodeclient join --standalone"):
        WorkerEnvironment.from_environ(environ)


@pytest.mark.parametrize("text", ["", "-1", "1_0", " 1", "one", "٣", "9" * 5000])
def test_what_is_not_a_number_is_named(text: str) -> None:
    with pytest.raises(NotLaunchedError, match=r"WORLD_SIZE is .*, not a number"):
        WorkerEnvironment.from_environ({**EXAMPLE.to_environ(), "WORLD_SIZE": text})


def test_an_empty_master_address_is_named() -> None:
    with pytest.raises(NotLaunchedError, match="MASTER_ADDR is empty"):
        WorkerEnvironment.from_environ({**EXAMPLE.to_environ(), "MASTER_ADDR": ""})
