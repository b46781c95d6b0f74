"""What only one host has is copied to another one, and the older step stays until the copies of the newer are there."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coordinatord.core.keeping.copy_plan import TAKES_MAX, buddies
from coordinatord.core.keeping.known import kept_of
from coordinatord.core.rounds.values.records import RoundFormed, TrainingBegan
from coordinatord.core.shown.job_view import kept_view
from coordinatord.protocol.kept_state import Holding, KeptStep, PersistedStep
from nodeclient.core.kept_groups import grouped
from tests.support.kept_state import kept_parts
from tests.support.script import Stage

NODES = ("n1", "n2", "n3")


class Job(Stage):
    """Three nodes of which each has a shard of its own; `have` is what a node keeps, as steps and ranks."""

    def __init__(self, *nodes: str, **options: str) -> None:
        super().__init__()
        self.nodes = nodes or NODES
        self.on_disk: tuple[PersistedStep, ...] = ()
        """What all nodes find on a disk."""
        for node in self.nodes:
            more = options.get(node, "")
            self.play(f"join {node} min=2 max=3 keeps=copies restarts=9 {more}")
        self.play(f"running {' '.join(self.nodes[:3])}")

    def have(self, node: str, *parts: tuple[int, int], problem: str = "", shards: int = 3) -> None:
        """Let a node keep these parts, each a step and a rank, and protect those that it was told to protect."""
        puppet = self.puppets[node]
        named = {at.step for at in self.desired(node).protected or ()}
        kept = grouped(
            kept_parts(1, step, range(rank, rank + 1), world_size=3, shards=shards, protected=step in named)
            for step, rank in parts
        )
        run = self.run.id
        puppet.observed = replace(
            puppet.observed, run=run, kept=Holding(kept, copy_problem=problem, persisted=self.on_disk)
        )
        self.play("advance 1s")

    def save(self, *steps: int, copied: Sequence[int] = (), problem: str = "", shards: int = 3) -> None:
        """Let all nodes keep these steps, with copies of some, and protect what they are told to."""
        for _ in range(3):
            for rank, node in enumerate(self.nodes[:3]):
                copies = ((step, (rank - 1) % 3) for step in copied)
                self.have(node, *((step, rank) for step in steps), *copies, problem=problem, shards=shards)

    def copies(self, node: str) -> list[tuple[int, str, int]]:
        """Return the copies that a node is to get: the step, the node that has it and the rank."""
        return [
            (copy.step, copy.source.node, part.first_rank)
            for copy in self.desired(node).copies
            for part in copy.source.parts
        ]

    @property
    def named(self) -> list[int]:
        """Return the steps that nodes are told to protect."""
        return [at.step for at in self.desired("n1").protected or ()]

    @property
    def copied(self) -> KeptStep | None:
        """Return the newest step that outlives the loss of a host."""
        return kept_of(self.run).copied


def test_each_node_is_told_to_copy_what_the_one_before_it_has_until_it_has_it() -> None:
    job = Job()
    job.save(8)
    assert [job.copies(node) for node in NODES] == [[(8, "n3", 2)], [(8, "n1", 0)], [(8, "n2", 1)]]
    job.have("n2", (8, 1), (8, 0))
    job.have("n2", (8, 1), (8, 0))
    assert job.copies("n2") == []
    assert job.copied is None


def test_a_node_gets_the_rest_of_its_copies_when_the_connection_of_their_holder_is_back() -> None:
    job = Job()
    job.save(8)
    job.play("advance 0.5s", "drop n1", "advance 0.6s")
    assert job.copies("n2") == []
    job.play("reconnect n1", "advance 1s")
    assert job.copies("n2") == [(8, "n1", 0)]


def with_a_newer_step() -> tuple[Job, list[list[tuple[int, int]]]]:
    """Let all nodes keep step 8 with its copies, and step 16 without; return what each has."""
    job = Job()
    job.save(8)
    job.save(8, copied=[8])
    job.save(8, 16, copied=[8])
    return job, [[(8, rank), (8, (rank - 1) % 3), (16, rank)] for rank in range(3)]


def test_the_older_step_and_its_copies_stay_until_those_of_the_newer_are_there() -> None:
    job, _ = with_a_newer_step()
    assert job.named == [8, 16]
    assert job.copied == KeptStep(1, 8)
    assert job.copies("n2") == [(16, "n1", 0)]
    job.save(8, 16, copied=[8, 16])
    job.play("advance 2s")
    assert job.named == [16]
    assert job.copied == KeptStep(1, 16)


@pytest.mark.parametrize("last", [0, 1, 2])
def test_the_newer_step_takes_the_place_of_the_older_one_whoever_gets_the_last_copy(last: int) -> None:
    """Nodes have no place for a third step meanwhile, so nothing that they keep changes after the last copy."""
    job, own = with_a_newer_step()
    for rank in sorted(range(3), key=lambda rank: rank == last):
        job.have(NODES[rank], *own[rank], (16, (rank - 1) % 3))
    job.play("advance 5s")
    assert job.named == [16]


def test_a_step_is_the_whole_one_with_a_plan_that_is_made_when_all_copies_are_there() -> None:
    """Each node that comes makes the plans void."""
    job, own = with_a_newer_step()
    for rank in (1, 2):
        job.have(NODES[rank], *own[rank], (16, (rank - 1) % 3))
    kept_of(job.run).copies.plans.clear()
    job.have(NODES[0], *own[0], (16, 2))
    job.play("advance 5s")
    assert job.named == [16]


def test_a_step_that_is_being_written_to_a_disk_outlives_a_host_until_it_is_there() -> None:
    job = Job(**dict.fromkeys(NODES, "keeps=copies+600s"))
    job.save(8)
    job.save(8, copied=[8])
    job.play("advance 600s")
    disk = kept_of(job.run).disk
    assert disk.pinned == KeptStep(1, 8)
    job.save(8, 16, copied=[8], problem="no room")
    assert job.named == [16, 8]
    assert job.copied == KeptStep(1, 8)
    disk.drop()
    assert job.copied is None


def test_nobody_waits_for_a_node_that_cannot_take_a_copy_and_the_step_does_not_count_as_copied() -> None:
    job = Job()
    job.save(8)
    job.save(8, copied=[8])
    job.save(16, copied=[16], problem="no memory")
    job.have("n2", (16, 1), problem="no memory")
    job.play("advance 2s")
    assert job.named == [16]
    assert job.copied is None


def test_what_all_have_alike_is_copied_nowhere_and_outlives_any_host() -> None:
    job = Job()
    job.save(8, shards=1)
    assert [job.copies(node) for node in NODES] == [[], [], []]
    assert job.copied == KeptStep(1, 8)


def test_nodes_of_one_host_are_copied_to_a_spare_on_another() -> None:
    job = Job("n1", "n2", "n3", "n4", n1="host=a", n2="host=a", n3="host=a")
    job.save(8)
    assert sorted(job.copies("n4")) == [(8, "n1", 0), (8, "n2", 1)]
    job.have("n4", (8, 0), (8, 1))
    job.have("n4", (8, 0), (8, 1))
    assert sorted(job.copies("n4")) == [(8, "n3", 2)]
    assert job.copies("n2") == []


def test_copies_of_a_spare_that_leaves_are_planned_anew_while_nothing_else_changes() -> None:
    hosts = {node: f"host={host}" for node, host in zip(("n1", "n2", "n3", "n4", "n5"), "aaabc", strict=True)}
    job = Job(*hosts, **hosts)
    job.save(8)
    for _ in range(2):
        job.have("n4", (8, 0), (8, 2))
        job.have("n5", (8, 1))
    assert [job.copies(node) for node in ("n4", "n5")] == [[], []]
    job.play("leave n4", "drop n4", "advance 5s")
    assert sorted(job.copies("n5")) == [(8, "n1", 0), (8, "n3", 2)]


def test_a_rack_is_a_domain_and_hosts_are_where_there_is_one_rack_alone() -> None:
    racks = Job(n1="topology=r1", n2="topology=r1", n3="topology=r2")
    racks.save(8)
    assert racks.copies("n2") == []
    assert [step for step, _, _ in racks.copies("n3")] == [8, 8]
    assert racks.copies("n1") == [(8, "n3", 2)]
    job = Job(n1="topology=r", n2="topology=r", n3="topology=r")
    job.save(8)
    assert [len(job.copies(node)) for node in NODES] == [1, 1, 1]


@pytest.mark.parametrize(
    ("third", "problem"), [("gpu1", ""), ("gpu2", "node n1 takes no copies, by its --keep-memory or --keep-rate")]
)
def test_a_job_on_one_host_has_no_copies_and_nothing_is_wrong_with_that(third: str, problem: str) -> None:
    job = Job(n1="host=gpu1 keeps=yes", n2="host=gpu1 keeps=yes", n3=f"host={third} keeps=yes")
    job.save(8)
    assert (view := kept_view(job.run)) is not None
    assert view.copy_problem == problem


def test_a_problem_that_a_node_had_in_an_earlier_run_is_not_one_of_this_run() -> None:
    job = Job()
    job.save(8)
    puppet = job.puppets["n1"]
    puppet.observed = replace(puppet.observed, run="r-0", kept=Holding((), copy_problem="n3 does not answer"))
    job.play("advance 1s")
    assert (view := kept_view(job.run)) is not None
    assert view.copy_problem == ""


def next_round_without_n3(job: Job) -> RoundFormed:
    job.play("step n1 9", "silence n3", "advance 20s", "stopped n1 n2", "advance 20s")
    return job.records(RoundFormed)[-1]


@pytest.mark.parametrize(("on_disk", "step", "place"), [(8, 8, "the memory of nodes n1, n2"), (9, 9, "disk")])
def test_a_copy_is_resumed_from_unless_the_disk_has_something_newer(on_disk: int, step: int, place: str) -> None:
    job = Job(**dict.fromkeys(NODES, "keeps=copies+600s"))
    job.save(8)
    parts = kept_parts(1, on_disk, range(3), world_size=3, shards=3)
    job.on_disk = (PersistedStep(1, job.run.id, (parts,)),)
    job.save(8, copied=[8])
    formed = next_round_without_n3(job)
    assert f"resumes at step {step} from {place}" in formed.reason


def test_after_a_restart_the_step_whose_copies_are_there_stays_the_whole_one() -> None:
    job, _ = with_a_newer_step()
    job.play("die 1s", "reconnect n1 n2 n3", "advance 2s")
    assert job.named == [8, 16]
    assert job.copied == KeptStep(1, 8)


def nodes(*domains: str) -> dict[str, str]:
    """Return nodes of these domains: n0, n1 and so on."""
    return {f"n{number}": domain for number, domain in enumerate(domains)}


def test_a_lonely_host_has_no_copy_but_on_a_spare_of_another_domain() -> None:
    assert buddies(nodes("a", "a"), {}) == {}
    assert buddies(nodes("a", "a"), {"s1": "a", "s2": "b"}) == {"n0": "s2", "n1": "s2"}


def test_a_spare_changes_nothing_where_the_nodes_manage_without_it() -> None:
    trio = nodes("a", "b", "c")
    assert buddies(trio, {"s1": "d"}) == buddies(trio, {})


def test_the_rest_of_a_job_takes_what_one_large_domain_has_as_far_as_it_may() -> None:
    assert buddies(nodes("a", "a", "a", "b"), {}) == {"n3": "n0", "n0": "n3", "n1": "n3", "n2": "n3"}
    pairs = buddies(nodes("b", *("a" for _ in range(20))), {})
    assert Counter(pairs.values())["n0"] == TAKES_MAX


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=30))
def test_copies_are_never_in_the_same_domain_and_evenly_spread(drawn: list[str]) -> None:
    domain = nodes(*drawn)
    pairs = buddies(domain, {})
    assert all(domain[node] != domain[other] for node, other in pairs.items())
    largest = max(Counter(drawn).values())
    if 2 * largest <= len(drawn):
        assert sorted(pairs.values()) == sorted(domain), "each has a copy, and each takes one"
    elif largest < len(drawn):
        least = -(-largest // (len(drawn) - largest))
        assert max(Counter(pairs.values()).values()) <= min(least, TAKES_MAX)


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=30, unique=True), st.data())
def test_a_node_that_goes_changes_one_pair_where_each_is_its_own_domain(drawn: list[str], data: st.DataObject) -> None:
    drawn_nodes = nodes(*drawn)
    gone = data.draw(st.sampled_from([*drawn_nodes]))
    others = {node: domain for node, domain in drawn_nodes.items() if node != gone}
    before, after = buddies(drawn_nodes, {}), buddies(others, {})
    assert sum(before[node] != other for node, other in after.items()) <= 1


@pytest.mark.parametrize(
    ("third", "why"),
    [
        ("gpu1", "all nodes of round 1 were on one host"),
        ("gpu2", "node n1 takes no copies, by its --keep-memory or --keep-rate"),
    ],
)
def test_who_begins_anew_for_lack_of_copies_is_warned_until_no_step_is_done_again(third: str, why: str) -> None:
    job = Job(n1="host=gpu1 keeps=yes", n2="host=gpu1 keeps=yes", n3=f"host={third} keeps=yes")
    job.save(64)
    job.play("step n1 n2 n3 66", "drop n3", "advance 10s", "stopped n1 n2", "advance 60s")
    anew = f"no step that nodes keep is whole, and copies were missing: {why}"
    assert job.run.durable.formed_reason.endswith(f"; {anew}")
    job.play("running n1 n2")
    assert not job.desired("n1").remark
    job.play("step n1 0", "advance 5s")
    lost = f"steps up to 66 are done again: {anew}"
    assert job.records(TrainingBegan)[-1].reason == f"a worker of node n1 has reported step 0; {lost}"
    assert (job.desired("n1").remark, job.desired("n2").remark) == (lost, lost)
    reason = "all workers are started (lost node n3; formed of nodes n1, n2)"
    assert job.view().reason == f"{reason}; {lost}"
    job.play("step n1 n2 67", "advance 5s")
    assert not job.desired("n1").remark
    assert lost not in job.view().reason


def test_a_script_that_goes_on_from_its_own_checkpoint_is_not_warned() -> None:
    job = Job(n1="host=gpu1 keeps=yes", n2="host=gpu1 keeps=yes", n3="host=gpu1 keeps=yes")
    job.save(64)
    job.play("step n1 n2 n3 66", "drop n3", "advance 10s", "stopped n1 n2", "advance 60s", "running n1 n2")
    job.play("step n1 n2 66", "advance 5s")
    assert not job.desired("n1").remark
