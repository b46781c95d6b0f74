"""What facts about a host say about its health: each fault by its name, and nothing about a healthy host."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from coordinatord.hints.xid import OF_THE_NODE
from coordinatord.protocol.messages import CheckResult
from nodeclient.core.host_health import (
    SHARED_MEMORY,
    Finding,
    GpuFacts,
    GpuProcess,
    GpuUse,
    HostFacts,
    Interface,
    Space,
    Xid,
    conclude,
    judge,
    remembered,
    unchecked,
)

GIB = 1 << 30

GPUS = tuple(GpuFacts(f"GPU-{number}", f"0000:{number:02x}:00.0", 0) for number in range(1, 9))

DISK = Space("logs", "/logs", 100 * GIB, 50 * GIB)

SHM = Space(SHARED_MEMORY, "/dev/shm", 8 * GIB, 8 * GIB)  # noqa: S108

WELL = HostFacts(
    has_driver=True,
    gpus=GPUS,
    xids=(Xid(70, 79, "0000:02:00"),),
    spaces=(DISK, SHM),
    interfaces={"lo": Interface("unknown", 0), "eth0": Interface("up", 3), "eth1": Interface("down", 0)},
    lost_links={"mlx5_0/1": 2},
    route="eth0",
    clock_ahead_s=0.0,
)
"""A host with eight GPUs. The error in its log is older than the check."""


def well(**others: Any) -> HostFacts:
    return replace(WELL, **others)


def with_recovery(action: int | None) -> tuple[GpuFacts, ...]:
    return (*GPUS[:-1], replace(GPUS[-1], recovery=action))


OLD_DRIVER = tuple(replace(gpu, recovery=None) for gpu in GPUS)

NEW_XID = (*(WELL.xids or ()), Xid(71, 79, "0000:03:00"))

BAD, WARNING = CheckResult.BAD, CheckResult.WARNING

LOST_GPU = (*GPUS[:-1], GpuFacts("unknown-7"))

FAULTS = {
    "a GPU is gone": (well(gpus=GPUS[:-1]), BAD, "GPU GPU-8 at 0000:08:00.0 is gone"),
    "a GPU that does not answer": (well(gpus=LOST_GPU), BAD, "GPU GPU-8 at 0000:08:00.0 is gone"),
    "a GPU that moves the numbers of others": (well(gpus=GPUS[1:]), BAD, "GPU GPU-1 at 0000:01:00.0 is gone"),
    "a reset": (well(gpus=with_recovery(1)), BAD, "GPU GPU-8 at 0000:08:00.0 needs a reset: nvidia-smi --gpu-reset"),
    "a restart": (well(gpus=with_recovery(2)), BAD, "GPU GPU-8 at 0000:08:00.0 needs a restart of the host"),
    "a drain": (well(gpus=with_recovery(3)), BAD, "GPU GPU-8 at 0000:08:00.0 needs an end of the traffic"),
    "a drain and a reset": (well(gpus=with_recovery(4)), BAD, "GPU GPU-8 at 0000:08:00.0 needs an end of the work"),
    "an Xid": (well(gpus=OLD_DRIVER, xids=NEW_XID), BAD, "GPU 0000:03:00 had Xid 79 (the GPU has fallen off the bus)"),
    "an Xid that needs no recovery": (well(xids=NEW_XID), WARNING, "GPU 0000:03:00 had Xid 79"),
    "a full /dev/shm": (well(spaces=(DISK, replace(SHM, free=0))), BAD, f"{SHM.path} (shared memory) is full"),
    "little /dev/shm": (
        well(spaces=(replace(SHM, free=40 << 20),)),
        WARNING,
        f"{SHM.path} (shared memory) has only 40 MiB",
    ),
    "a full disk": (well(spaces=(replace(DISK, free=0), SHM)), BAD, "/logs (logs) is full"),
    "a disk without inodes": (well(spaces=(replace(DISK, lacks_inodes=True),)), BAD, "/logs (logs) has no inode left"),
    "a mistyped directory": (
        well(spaces=(replace(DISK, above="/"), replace(DISK, path="/a/b", above="/"))),
        WARNING,
        "/a/b (logs) does not exist",
    ),
    "a read-only disk": (well(spaces=(replace(DISK, is_read_only=True),)), BAD, "/logs (logs) is read-only"),
    "little disk": (well(spaces=(replace(DISK, free=GIB - 1),)), WARNING, "/logs (logs) has only 1,023 MiB left"),
    "a clock ahead": (well(clock_ahead_s=5.1), WARNING, "the clock of this host is 5 s ahead of the coordinator's"),
    "a clock behind": (
        well(clock_ahead_s=-3_600.0),
        WARNING,
        "the clock of this host is 3,600 s behind the coordinator",
    ),
    "an interface down": (
        well(route="", interfaces={**WELL.interfaces, "eth0": Interface("down", 3)}),
        BAD,
        "network interface eth0, on the way to the coordinator, is down",
    ),
    "an interface gone": (
        well(route="", interfaces={"eth1": Interface("up", 0)}),
        BAD,
        "network interface eth0, on the way",
    ),
    "another way": (
        well(route="eth1", interfaces={"eth1": Interface("up", 0)}),
        WARNING,
        "network interface eth0, on the way",
    ),
    "errors of an interface": (
        well(interfaces={**WELL.interfaces, "eth0": Interface("up", 10)}),
        WARNING,
        "network interface eth0, on the way to the coordinator, had 7 errors since the last check",
    ),
    "a lost link": (well(lost_links={"mlx5_0/1": 4}), WARNING, "InfiniBand port mlx5_0/1 lost its link 2 times since"),
    "memory in use": (
        well(in_use=(GpuUse("nvidia0", GIB),)),
        WARNING,
        "1,024 MiB of nvidia0 are in use by no process that is seen here: fuser -v /dev/nvidia0 names the holder",
    ),
    "memory left behind": (
        well(in_use=(GpuUse("nvidia0", GIB, (GpuProcess(7, "ann", left_behind=True),)),)),
        WARNING,
        "1,024 MiB of nvidia0 are in use by processes that were left behind (7): end them",
    ),
}
"""The faults, each with its facts after those of a healthy host."""


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_with_its_place(fault: str) -> None:
    facts, result, text = FAULTS[fault]
    [finding] = judge(facts, WELL, is_idle=True)
    assert finding.result is result
    assert finding.text.startswith(text)
    assert ": " in finding.text, "it has a remedy"
    assert conclude((finding,), facts) == (result, finding.text)


def test_a_healthy_host_has_no_findings() -> None:
    assert judge(WELL, WELL, is_idle=True) == ()
    assert conclude((), WELL) == (CheckResult.GOOD, "")


def test_the_first_check_knows_of_no_change_but_warns_of_old_errors() -> None:
    [finding] = judge(WELL, None, is_idle=True)
    assert finding.result is WARNING
    assert finding.text.startswith("GPU 0000:02:00 had Xid 79")


@pytest.mark.parametrize(
    "xid",
    [Xid(71, 31, "0000:03:00"), Xid(71, 79, "0000:99:00"), Xid(70, 79, "0000:02:00")],
    ids=["own", "other", "old"],
)
def test_errors_of_the_program_of_other_gpus_and_of_before_are_no_fault_of_the_host(xid: Xid) -> None:
    assert judge(well(gpus=OLD_DRIVER, xids=(xid,)), WELL, is_idle=True) == ()


def test_memory_that_a_living_process_or_a_worker_may_have_is_no_finding() -> None:
    used = well(in_use=(GpuUse("nvidia0", GIB, (GpuProcess(7, "ann", left_behind=False),)),))
    assert judge(used, WELL, is_idle=True) == ()
    assert judge(well(in_use=(GpuUse("nvidia0", GIB),)), WELL, is_idle=False) == ()


def test_gpus_whose_names_another_source_gives_are_not_gone() -> None:
    by_file = tuple(GpuFacts(f"nvidia{number}") for number in range(8))
    assert judge(well(gpus=by_file), WELL, is_idle=True) == ()
    assert judge(WELL, well(gpus=by_file), is_idle=True) == ()


def test_what_cannot_be_read_is_good_and_said() -> None:
    facts = HostFacts(has_driver=True, gpus=OLD_DRIVER, unread=("disks (no answer)",), clock_unread="no token")
    assert judge(facts, WELL, is_idle=True) == ()
    said = (
        "cannot be checked: disks (no answer), what recovery GPUs need (NVIDIA's driver tells it since 570), errors"
        " of GPUs (this user may not read the kernel's log, /dev/kmsg)"
    )
    assert conclude((), facts) == (CheckResult.GOOD, said), "the node says by itself why it reaches no coordinator"
    assert unchecked(HostFacts(gpus=(), spaces=(DISK,))) == (), "a host without GPUs has no such errors"


def test_where_nothing_can_be_read_the_result_is_unknown() -> None:
    said = "cannot be checked: this host (no answer)"
    assert conclude((), HostFacts(unread=("this host (no answer)",), clock_unread="no token")) == (
        CheckResult.UNKNOWN,
        said,
    )


def test_the_worst_findings_are_told() -> None:
    findings = (Finding(WARNING, "hot"), Finding(BAD, "one is gone"), Finding(BAD, "it is full"))
    assert conclude(findings, WELL) == (BAD, "one is gone; it is full")


def test_a_fact_that_was_missing_for_a_while_is_compared_with_the_one_before() -> None:
    kept = remembered(HostFacts(spaces=(DISK,)), WELL)
    [finding] = judge(well(gpus=GPUS[:-1]), kept, is_idle=True)
    assert finding.text.startswith("GPU GPU-8")
    [finding] = judge(well(lost_links={"mlx5_0/1": 3}), kept, is_idle=True)
    assert finding.text.startswith("InfiniBand")


def noisy(chance: random.Random, before: HostFacts) -> HostFacts:
    """Return facts of a healthy host: some cannot be read, programs fail on its GPUs, and other jobs come and go."""
    number = max((xid.number for xid in before.xids or ()), default=0)
    errors = [(code, f"0000:{chance.randrange(1, 9):02x}:00") for code in (8, 13, 31, 43, 45, 94, 154)]
    errors += [(code, "0000:f1:00") for code in OF_THE_NODE]
    errors = [error for error in errors if chance.random() < 0.1]
    process = GpuProcess(chance.randrange(2, 99_999), "ann", left_behind=False)
    use = tuple(GpuUse(f"nvidia{gpu}", chance.randrange(GIB, 80 * GIB), (process,)) for gpu in range(8))
    facts = well(
        gpus=tuple(replace(gpu, recovery=chance.choice([0, 0, 0, None, 9])) for gpu in GPUS),
        in_use=chance.choice([(), use]),
        xids=tuple(Xid(number + 1 + chance.randrange(50), code, gpu) for code, gpu in errors),
        spaces=(
            replace(DISK, free=chance.randrange(2 * GIB, 100 * GIB)),
            replace(SHM, free=chance.randrange(GIB, 8 * GIB)),
        ),
        interfaces={
            "lo": Interface("unknown", 0),
            "eth0": Interface(chance.choice(["up", "unknown", "dormant"]), before.interfaces["eth0"].errors),
            f"veth{chance.randrange(99)}": Interface("down", chance.randrange(9)),
        },
        clock_ahead_s=chance.uniform(-2.0, 2.0),
    )
    missing = [name for name in HostFacts.__struct_fields__ if name != "has_driver" and chance.random() < 0.05]
    return replace(facts, **{name: getattr(HostFacts(), name) for name in missing})


def test_ten_thousand_checks_of_a_healthy_host_have_no_findings() -> None:
    chance = random.Random(112)  # noqa: S311 - repeatable on purpose
    passed = WELL
    for _ in range(10_000):
        facts = noisy(chance, passed)
        findings = judge(facts, passed, is_idle=chance.random() < 0.5)
        assert findings == (), facts
        passed = remembered(facts, passed)
