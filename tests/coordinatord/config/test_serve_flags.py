"""The settings of coordinatord, as the command line and a file give them."""

from pathlib import Path

import pytest

from coordinatord.config.serve_flags import ServeConfig
from coordinatord.config.subcommands import parse


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
