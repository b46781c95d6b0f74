"""Round after round from one parent interpreter: what is new in each round, and what is there once and for all."""

import shutil
from collections import Counter

import pytest

from tests.nodeclient.forkserver.support import LIBRARY, Stage, assert_same, python

pytestmark = pytest.mark.slow

ALWAYS = "--max-futile-rounds", "0"
"""Another round follows though the script fails with the same error again."""

CHANGES = '''"""Leaves itself and its neighbours changed for the next round."""
import os, pathlib, sys, report
import neighbour
from package.member import known
number = 1
if number == 22:
    import late
report.report(number=number, neighbour=neighbour.number, known=known, late="late" in sys.modules)
for path in map(pathlib.Path, [__file__, neighbour.__file__, "package/member.py"]):
    path.write_text(path.read_text().replace("= 1\\n", "= 22\\n"))
pathlib.Path("later").mkdir(exist_ok=True)
pathlib.Path("later/late.py").write_text("where = __file__")
neighbour.fail()
'''

NEIGHBOUR = """number = 1
def fail():
    raise ValueError(number)  # in round 1
"""


def test_what_is_not_preloaded_is_read_afresh(stage: Stage) -> None:
    script = stage.folder / "train.py"

    def prepare() -> None:
        shutil.rmtree(stage.folder / "later", ignore_errors=True)
        files = {"train.py": CHANGES, "neighbour.py": NEIGHBOUR, "package/member.py": "known = 1\n"}
        for name, text in files.items():
            stage.write(name, text)

    cold, warm = stage.both(
        *python(script),
        prepare=prepare,
        flags=("--max-restarts", "2", *ALWAYS),
        environ={"PYTHONPATH": f"{LIBRARY}:{stage.folder}/later"},
    )
    new = {"number": 22, "neighbour": 22, "known": 22, "late": True}
    assert warm.facts == [{"number": 1, "neighbour": 1, "known": 1, "late": False}, new, new]
    assert_same(cold, warm)


DRAW = """
import importlib.util, multiprocessing, os, random, secrets, ssl, sys, tempfile, report, uuid
drawn = {
    "random": random.random(),
    "shuffled": random.sample(range(1000), 10),
    "secrets": secrets.token_hex(),
    "urandom": os.urandom(8).hex(),
    "tls": ssl.RAND_bytes(8).hex(),
    "uuid1": str(uuid.uuid1()),
    "uuid4": str(uuid.uuid4()),
    "name": tempfile.mktemp(),
    "pid": os.getpid(),
    "key": bytes(multiprocessing.current_process().authkey).hex(),
}
if importlib.util.find_spec("numpy"):
    import numpy
    drawn |= {"numpy": numpy.random.rand(), "generator": numpy.random.default_rng().random()}
report.report(**drawn)
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1")
"""


@pytest.mark.parametrize("restarts", [3, pytest.param(39, marks=pytest.mark.long)])
def test_what_is_preloaded_is_loaded_once_and_each_worker_of_each_round_is_one_process(
    stage: Stage, restarts: int
) -> None:
    """A fork that has closed its socket to the node may be the worker all the same."""
    script = stage.write("train.py", "import beacon, os, sys, report\nreport.report(pid=os.getpid())\nsys.exit(3)")
    flags = ("--max-restarts", str(restarts), *ALWAYS, "--nproc-per-node", "2")
    job = stage.run(*python(script), preload="beacon", flags=flags)
    assert job.code == 3
    assert all(report.warm for report in job.reports)
    started = Counter((report.round, report.rank) for report in job.reports)
    assert {round_number for round_number, _ in started} == set(range(1, restarts + 2))
    assert set(started.values()) == {1}, started
    [parent] = stage.loaded_by
    assert parent not in {report.facts["pid"] for report in job.reports}


def test_chance_is_another_in_each_worker_of_each_round(stage: Stage) -> None:
    pytest.importorskip("numpy")
    modules = "beacon,random,secrets,ssl,tempfile,uuid,multiprocessing.process,numpy.random"
    script = stage.write("train.py", DRAW)
    job = stage.run(*python(script), preload=modules, flags=("--max-restarts", "1", "--nproc-per-node", "2"))
    assert job.code == 0
    assert all(report.warm for report in job.reports)
    assert len(job.reports) >= 3, "in round 1 rank 0 may have been stopped before it drew"
    for name in job.facts[0]:
        drawn = [str(facts[name]) for facts in job.facts]
        assert len(set(drawn)) == len(drawn), f"{name}: {drawn}"
