"""torchrun with a coordinator as it is by default: encrypted, and for those with a token."""

import sys
from pathlib import Path

import pytest

from nodeclient.access.keyring import CREDENTIAL
from tests.support.places import Place
from tests.support.programs import BIN, Program
from tests.support.torchruns import NEEDS_BACKENDS

pytestmark = [pytest.mark.slow, NEEDS_BACKENDS]


def torchrun(place: Place, **environ: str) -> Program:
    """Start one as somebody who has no token, but for what is in the environment."""
    rendezvous = ("--rdzv-backend=coordinatord", f"--rdzv-endpoint={place.endpoint}", "--rdzv-id=j")
    run = (sys.executable, BIN / "torchrun", *rendezvous, "--nnodes=1", "--no-python", "sh", "-c")
    return place.start(*run, "echo token: $NODECLIENT_TOKEN.", environ={**place.stranger, **environ})


def test_torchrun_shows_the_token_that_systemd_hands_to_it(place: Place, tmp_path: Path) -> None:
    place.coordinator()
    place.token("new", "--output", str(tmp_path / CREDENTIAL))
    node = torchrun(place, CREDENTIALS_DIRECTORY=str(tmp_path))
    assert node.wait() == 0, node.output
    assert "succeeded" in place.ask("status").stdout


def test_torchrun_keeps_a_token_from_its_workers(place: Place) -> None:
    place.coordinator()
    node = torchrun(place, NODECLIENT_TOKEN=place.token("new"))
    assert node.wait() == 0, node.output
    assert "token: ." in node.lines


@pytest.mark.long
def test_who_has_none_hears_of_what_torchrun_has(place: Place) -> None:
    place.coordinator()
    torchrun(place).await_line("wants a token, and there is none here: .* by the variable NODECLIENT_TOKEN_FILE")
