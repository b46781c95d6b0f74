"""A worker ends when its program is over, whatever gloo's threads are doing then, and without workerlib."""

import pytest

from tests.nodeclient.forkserver.support import Stage, python
from tests.support.gloo import BUSY_AT_THE_END, skip_where_gloo_needs_no_python

pytestmark = pytest.mark.slow

TRAIN = f"""
import os, sys, report
{BUSY_AT_THE_END}
def main():
    report.report()
    dist.init_process_group("gloo")
    model = be_busy_at_the_end()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        dist.destroy_process_group()

main()
if os.environ["TORCHELASTIC_RESTART_COUNT"] != sys.argv[1]:
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("preload", "restarts"),
    [("torch", 1), pytest.param("json", 0, marks=pytest.mark.long)],
    ids=["preloaded", "imported later"],
)
def test_a_worker_ends_although_a_model_outlives_its_group_or_the_group_the_script(
    stage: Stage, preload: str, restarts: int
) -> None:
    skip_where_gloo_needs_no_python()
    script = stage.write("train.py", TRAIN)
    flags = ("--nproc-per-node", "2", "--max-restarts", str(restarts))
    job = stage.run(*python(script, str(restarts)), preload=f"beacon,{preload}", flags=flags)
    assert job.code == 0, job.stderr
    assert [(report.round, report.warm) for report in job.reports] == [
        (n, True) for n in range(1, restarts + 2) for _ in range(2)
    ]
