"""A node whose Python finds another workerlib says so, and imports nothing of it."""

from pathlib import Path

import pytest

from coordinatord.protocol.exit_codes import ExitCode
from tests.support.programs import BIN, clean_environ, run

pytestmark = pytest.mark.slow


def test_a_package_that_comes_before_ours_is_named_and_not_imported(tmp_path: Path) -> None:
    package = tmp_path / "workerlib"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    ended = run(
        BIN / "nodeclient", "join", "--standalone", "--", "true", environ=clean_environ(PYTHONPATH=str(tmp_path))
    )
    assert ended.returncode == ExitCode.USAGE
    assert f"Python finds {package}/__init__.py for workerlib" in ended.stderr
    assert "imported" not in ended.stderr
    checked = run(BIN / "nodeclient", "check", environ=clean_environ(PYTHONPATH=str(tmp_path)))
    assert checked.returncode != 0
    assert f"warning: Python finds {package}/__init__.py for workerlib" in checked.stdout
