"""The settings of coordinatord, as the command line and a file give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinatord.commands.reload import AFTER_RESTART, AT_ONCE
from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.subcommands import parse

NOT_COMPARED = {
    "ephemeral": "`state-dir` shows it",
    "etcd-ca": "`store` has it",
    "etcd-cert": "`store` has it",
    "etcd-key": "`store` has it",
    "etcd-user-file": "`store` has it",
}


def serve(*flags: str) -> ServeConfig:
    config = parse(["--ephemeral", *flags], {})
    assert isinstance(config, ServeConfig)
    return config


@pytest.mark.parametrize("zero", ["0", "0.0", "0.", "00"])
def test_a_retry_pause_of_zero_is_none(zero: str) -> None:
    assert serve("--retry-pause", zero).policy.retry_pause_s == 0.0


def test_a_file_can_set_the_retry_pause_to_a_zero_of_any_type(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    for zero in ("0", "0.0"):
        file.write_text(f"retry-pause = {zero}\n")
        assert serve("--config", str(file)).policy.retry_pause_s == 0.0


def test_a_reload_names_each_setting_that_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--ephemeral", "--show-config"], {})
    lines = capsys.readouterr().out.splitlines()[1:]
    settings = {line.removeprefix("# ").partition(":" if line.startswith("#") else " =")[0] for line in lines}
    assert "settle" in settings
    assert settings - NOT_COMPARED.keys() == AT_ONCE.keys() | AFTER_RESTART.keys()
