"""The quick tests can be read without torch, as `make quick` reads them; CI runs all tests at once."""

import subprocess
import sys

import pytest

from tests.support.source import ROOT

pytestmark = pytest.mark.slow


def test_no_module_of_quick_tests_imports_torch() -> None:
    collect = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not slow and not long"]
    found = subprocess.run([sys.executable, *collect], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2_000:] + found.stderr[-2_000:]
