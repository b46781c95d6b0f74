"""The settings that the backend makes of torchrun's parameters."""

from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from coordinatord.protocol.access_token import Role
from coordinatord.protocol.fields import COUNTER_MAX
from coordinatord.protocol.ip_addresses import Endpoint
from coordinatord.protocol.messages import JobSpec, Launcher
from nodeclient.access.keyring import AccessSettings
from nodeclient.access.secured_attempt import SecuredAttempt
from nodeclient.torchrun.parameters import TorchrunConfig, read, with_torchrun_names

pytestmark = pytest.mark.slow


def config(
    endpoint: str = "coord:1234", run_id: str = "job", local_addr: str | None = None, **conf: Any
) -> TorchrunConfig:
    return read(RendezvousParameters("coordinatord", endpoint, run_id, 2, 4, local_addr, timeout=900, **conf))


def test_torchruns_flags_have_their_meaning_and_its_defaults() -> None:
    read, plain = config("[fd00::5]:1,b", local_addr="127.0.0.2", join_timeout="30"), config("coord")
    assert read.coordinators == (Endpoint("fd00::5", 1), Endpoint("b", 29_400))
    assert (read.job, read.spec) == ("job", JobSpec(2, 4, COUNTER_MAX, Launcher.TORCHRUN))
    assert (read.advertise_address, read.join_timeout_s, read.remark) == ("127.0.0.2", 30, "")
    assert plain.coordinators == (Endpoint("coord", 29_400),)
    assert (plain.advertise_address, plain.join_timeout_s) == (None, 600)
    assert read.node != plain.node, "each process is a node of its own"
    quoted = config(**{"'join_timeout": "5", "close_timeout": "1'"})
    assert quoted.join_timeout_s == 5, "quotes around the whole configuration fall away"


def test_what_is_known_only_to_others_or_to_nobody_is_remarked_on() -> None:
    assert config(last_call_timeout="1", read_timeout="60").remark.endswith("last_call_timeout, read_timeout")
    strange = config(**{"join_timeoutt": "5", "'x": "1"})
    assert "no backend knows the key 'join_timeoutt', it has no effect; did you mean join_timeout?" in strange.remark
    assert "no backend knows the key 'x', it has no effect" in strange.remark


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"endpoint": " "}, "--rdzv-endpoint: give HOST"),
        ({"endpoint": "a b"}, "--rdzv-endpoint: 'a b' is no HOST"),
        ({"run_id": "my job"}, "--rdzv-id: "),
        ({"local_addr": "no such host"}, "--local-addr: 'no such host'"),
        ({"join_timeout": "-1"}, "--rdzv-conf join_timeout: '-1'"),
    ],
)
def test_what_is_wrong_is_refused_by_name(wrong: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        config(**wrong)


def test_a_variable_that_torchrun_has_no_flag_for_is_checked_as_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODECLIENT_TLS_CERT", __file__)
    with pytest.raises(ValueError, match="NODECLIENT_TLS_CERT and NODECLIENT_TLS_KEY belong together"):
        config()
    monkeypatch.setenv("NODECLIENT_TLS_KEY", "/no/key.pem")
    with pytest.raises(ValueError, match=r"NODECLIENT_TLS_KEY: '/no/key\.pem': No such file or directory"):
        config()
    monkeypatch.setenv("NODECLIENT_TLS_KEY", __file__)
    assert (config().access.certificate, config().access.key) == (Path(__file__), Path(__file__))


def test_our_flags_are_called_what_torchrun_calls_them() -> None:
    assert with_torchrun_names("see --coord and --join-timeout") == "see --rdzv-endpoint and --rdzv-conf join_timeout=S"
    assert with_torchrun_names("see --coordinator, --advertise-addr") == "see --coordinator, --local-addr"


def test_where_torchrun_has_no_flag_the_variable_is_named() -> None:
    said = SecuredAttempt(AccessSettings(), Endpoint("h", 1), Role.JOIN).tls_required()
    assert with_torchrun_names(str(said)).endswith("copy FILE, and give it by the variable NODECLIENT_TOKEN_FILE")
    in_the_clear = SecuredAttempt(AccessSettings(insecure=True), Endpoint("h", 1), Role.JOIN).tls_required()
    assert with_torchrun_names(str(in_the_clear)) == "h:1 speaks TLS only: leave NODECLIENT_INSECURE out"
    ours = "If it was started with --insecure, give --insecure here too: see --tls-ca and --tls-cert"
    theirs = (
        "If it was started with --insecure, set NODECLIENT_INSECURE=1 here too:"
        " see NODECLIENT_TLS_CA and NODECLIENT_TLS_CERT"
    )
    assert with_torchrun_names(ours) == theirs
