"""Locales and characters: those that are not UTF-8, and bytes that are no characters at all."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Coordinator
from tests.support.programs import clean_environ
from tests.surroundings.support import join, sh, went

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def latin_1(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the variables that set a locale of ISO 8859-1; skips the test where none can be made."""
    place = tmp_path_factory.mktemp("locales")
    if shutil.which("localedef") is None or not Path("/usr/share/i18n/charmaps").is_dir():
        pytest.skip("a locale is made by localedef, from the package locales")
    subprocess.run(
        ["localedef", "-i", "en_US", "-f", "ISO-8859-1", place / "en_US"],  # noqa: S607 - any localedef
        check=True,
        capture_output=True,
    )
    return {"LOCPATH": str(place), "LC_ALL": "en_US", "LANG": "en_US"}


def test_names_and_reasons_may_have_letters_that_the_locale_has_not(
    coordinator: Coordinator, latin_1: dict[str, str], tmp_path: Path
) -> None:
    settings = tmp_path / "job.toml"
    settings.write_text('role = "to-\N{INFINITY},-größer"\n', encoding="utf-8")
    shown = {"latin-1": r"to-\u221e,-größer", "utf-8": "to-\N{INFINITY},-größer"}
    for encoding, environ in ("latin-1", latin_1), ("utf-8", {"LC_ALL": "C.UTF-8"}):
        node = join(coordinator, "--config", str(settings))
        ended = subprocess.run(
            [*node, "sh", "-c", 'echo "$ROLE_NAME"'], env=clean_environ(**environ), capture_output=True, check=True
        )
        assert ended.stdout.decode(encoding) == f"{shown[encoding]}\n"


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_what_workers_write_is_not_read_as_any_locale_has_it(coordinator: Coordinator, locale: str) -> None:
    says = r"printf 'Gr\303\274\303\237e \377\n'"
    node = sh([f"export LC_ALL={locale}"], *join(coordinator, "--nproc-per-node", "2"))
    ended = subprocess.run([*node, "sh", "-c", says], capture_output=True, check=True)
    assert sorted(ended.stdout.splitlines()) == [f"[rank {rank}] Grüße ".encode() + b"\xff" for rank in range(2)]


def test_arguments_and_variables_may_hold_anything_but_zeros(coordinator: Coordinator) -> None:
    odd = b"a\nb \xff"
    tells = "import os, sys; print(ascii(os.fsencode(sys.argv[1])), len(os.environ['LONG']))"
    ended = went(*join(coordinator), sys.executable, "-c", tells, os.fsdecode(odd), environ={"LONG": "x" * 130_000})
    assert ended.stdout == f"{odd!r} 130000\n"
