"""The packages for an index: the source has the whole tree, and an installation of the wheel has all that it needs."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.runtime import PAGES, __version__
from tests.support.programs import run
from tests.support.source import ROOT, sources

pytestmark = pytest.mark.slow


def build(kind: str, tree: Path, folder: Path) -> Path:
    """Make the "sdist" or the "wheel" of a tree in a folder that has none yet."""
    command = (sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder))
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    [made] = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.mark.long
def test_the_source_has_the_tree_and_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", ROOT, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    tree = tmp_path / f"coordinatord-{__version__}"
    assert [source.path for source in sources() if not (tree / source.path).exists()] == []
    assert build("wheel", tree, tmp_path / "wheel").read_bytes() == wheel.read_bytes()


def test_an_index_shows_the_readme_with_links_to_pages_of_this_version(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"coordinatord-{__version__}.dist-info/METADATA"))
    links = re.findall(r"\]\((?!#)([^)#]+)", str(metadata.get_payload()))
    assert len(links) > 20
    [address] = (url for url in metadata.get_all("Project-URL", []) if url.startswith("Source, "))
    repository = address.removeprefix("Source, ")
    pages = f"{repository}/blob/v{metadata['Version']}"  # only a release is put into an index
    raw = pages.replace("/blob/", "/raw/")  # where pictures are
    assert [link for link in links if not (ROOT / re.sub(f"^({pages}|{raw})/", "", link)).exists()] == []
    assert (f"{repository}/blob/main" if __version__.endswith(".dev0") else pages) == PAGES


def test_what_is_installed_runs_and_has_its_man_pages(wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps")
    subprocess.run([*pip, str(wheel)], check=True)
    # The libraries are those of the tests, so that no index is needed. This tree is not among them.
    place = sysconfig.get_path("purelib", vars={"base": str(tmp_path), "platbase": str(tmp_path)})
    Path(place, "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    for program in ("coordinatord", "nodeclient"):
        path = tmp_path / "bin" / program
        assert run(path, "--version", environ=environ).stdout.startswith(program)
        assert f"_shtab_{program}" in run(path, "--print-completion", "bash", environ=environ).stdout
        assert (tmp_path / "share" / "man" / "man1" / f"{program}.1").is_file()
    join = (tmp_path / "bin" / "nodeclient", "join", "--standalone", "--", "true")
    joined = run(*join, environ=environ)
    assert joined.returncode == 0, joined.stderr
    Path(place, "workerlib", "__init__.py").unlink()
    assert f"{place}/workerlib/__init__.py is missing" in run(*join, environ=environ).stderr
    # By this pip knows the other project's package, which puts its files into the same folder.
    Path(place, "workerlib-0.5.1.dist-info").mkdir()
    refused = run(*join, environ=environ)
    assert refused.returncode == ExitCode.USAGE
    assert f"{place}/workerlib has files of another project" in refused.stderr
    assert f"{python} -m pip uninstall workerlib coordinatord" in refused.stderr
