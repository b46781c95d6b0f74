"""The lock file of development has each dependency, with hashes, and names no place to get it from."""

import re
import tomllib

from packaging.requirements import Requirement

from tests.support.source import ROOT

LOCK = (ROOT / "requirements-dev.lock").read_text()

TABLES = tomllib.loads((ROOT / "pyproject.toml").read_text())

LOCKED = {
    match[1].lower(): match[0] for match in re.finditer(r"^([\w.-]+)==[^\n]*(?:\n    [^\n]+)*", LOCK, re.MULTILINE)
}
"""The lines of each package."""


def test_each_dependency_is_locked_to_a_version_in_its_range() -> None:
    project = TABLES["project"]
    extras = project["optional-dependencies"]
    wanted = map(Requirement, (*project["dependencies"], *extras["demo"], *TABLES["dependency-groups"]["dev"]))
    for requirement in wanted:
        if requirement.name != "coordinatord":
            version = LOCKED[requirement.name].partition("==")[2].split()[0]
            assert version in requirement.specifier, requirement
    assert not {name for name in LOCKED if name.startswith(("torch", "nvidia", "triton"))}


def test_each_package_has_hashes_and_no_place_is_named() -> None:
    assert all(" --hash=sha256:" in lines for lines in LOCKED.values())
    assert "://" not in LOCK
    assert "index" not in LOCK
