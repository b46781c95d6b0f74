"""Finds nodes that are slow, compute wrong values or have a bad link, by turns of tests in pairs.

Nothing says how fast a new kind of host should be, so nodes are compared with each other. In a test two nodes multiply
matrices, and then add up a vector over the link between them. A slow or wrong product is the node's own; a GPU is
compared with those of its kind. A slow or broken link may be the fault of either node, so in the next turn each of the
two is tested with a node that is good. If the link is bad again, the node is bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from coordinatord.protocol.pair_messages import PairResult

TURNS_MAX = 3
"""The most turns. Two are enough if at most a quarter of an even number of nodes is bad. The third is for odd numbers,
of which one node has no partner in a turn, and for pairs of which both nodes are bad."""

SLOW_SHARE = 0.5
"""A figure below this share of the usual one is slow. Healthy hosts of one kind differ by some percent. A program that
disturbs a test lowers the figure of a healthy host by less than half, since the best of several figures counts."""


class NodeVerdict(StrEnum):
    """The verdict of a preflight on a node."""

    GOOD = "good"
    SLOW = "slow"
    """It has given at least two results, and its fastest matrix product was slow."""
    WRONG = "wrong"
    """Its matrix product was not the right one."""
    BAD_LINK = "bad link"
    """Its links with two nodes were bad, and one of these nodes is good."""
    NO_ANSWER = "no answer"
    """It has measured nothing: its test could not run, or was not over in time."""
    UNTOLD = "cannot be told"
    """It was in too few tests with good nodes, or has only one result, which is slow."""

    @property
    def is_fault(self) -> bool:
        """Whether it is a fault of the node's host. An undecided test must not cost a host."""
        return self in {NodeVerdict.SLOW, NodeVerdict.WRONG, NodeVerdict.BAD_LINK}


class NodeFinding(Struct, frozen=True):
    """A verdict on a node, with its best figures."""

    verdict: NodeVerdict
    gflops: float | None
    mb_s: float | None
    text: str
    """The reason of the verdict, as a clause that follows the name of the node."""


class _Test(Struct, frozen=True):
    """A test of two nodes, and their results."""

    nodes: frozenset[str]
    is_near: bool
    """Whether the two are on one host, where links are faster than through a network."""
    results: dict[str, PairResult]

    @property
    def kind(self) -> tuple[object, ...]:
        """The kind of link, on which its speed depends. Hosts with the same GPU mostly have the same network."""
        return self.is_near, frozenset(result.gpu for result in self.results.values())

    @property
    def tells_link(self) -> bool:
        """Whether it says anything about the link: both nodes have computed their products, and so reached the sum."""
        return sum(result.gflops is not None for result in self.results.values()) == len(self.nodes)

    @property
    def mb_s(self) -> float:
        """The speed of the link; 0 if it is broken."""
        return min((result.mb_s or 0.0 for result in self.results.values()), default=0.0)


class _Usual(Struct, frozen=True):
    """The figures that are usual among the nodes."""

    gflops: dict[str, float]
    """The speed of products by the name of the GPU. Under the empty name is that of all nodes, with which a node
    without a GPU is compared: it may have lost its GPU."""
    mb_s: dict[tuple[object, ...], float]
    """The speed of links, by their kind."""

    def is_good_link(self, test: _Test) -> bool:
        """Whether a test shows that the link is good: a broken link is not, even if all links are broken."""
        return test.tells_link and 0.0 < test.mb_s >= SLOW_SHARE * self.mb_s[test.kind]

    def is_slow(self, gpu: str, gflops: float | None) -> bool:
        """Whether a node computes much slower than others."""
        return gflops is not None and gflops < SLOW_SHARE * self.gflops[gpu]


class PairSearch:
    """One search among some nodes: the pairs of each turn, the results, and what they show."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        """Begin with the first turn; `hosts` has the host of each node, sorted by host.

        Each node of the first half is tested with one of the second half. So the two are seldom on one host, and most
        links lead far through the network if names of hosts follow their places in it.
        """
        self.hosts = dict(hosts)
        self._tests: dict[str, list[_Test]] = {node: [] for node in hosts}
        self.turn = 1
        nodes, half = [*hosts], (len(hosts) + 1) // 2
        self.pairs = tuple(zip(nodes[:half], nodes[half:], strict=False))
        """The pairs of this turn; none once the search is over."""
        self.findings: dict[str, NodeFinding] = {}
        """The verdict on each node by all turns so far."""
        self.bad_links: tuple[tuple[str, ...], ...] = ()
        """The pairs of good nodes that have a bad link with each other only."""
        self._find()

    def end_turn(self, results: Mapping[str, PairResult]) -> None:
        """Record the results of the turn, and choose the next pairs; a node without an entry gave no result."""
        for pair in self.pairs:
            answers = {node: results[node] for node in pair if node in results}
            is_near = len({self.hosts[node] for node in pair}) == 1
            test = _Test(frozenset(pair), is_near, answers)
            for node in pair:
                self._tests[node].append(test)
        self.turn += 1
        self._find()
        self.pairs = () if self.turn > TURNS_MAX else tuple(self._next_pairs())

    @property
    def verdict(self) -> str:
        """The faults that were found, with their nodes and links, as a sentence."""
        bad = ((node, each) for node, each in self.findings.items() if each.verdict is not NodeVerdict.GOOD)
        nodes = [f"node {node} {each.text}" for node, each in bad]
        links = [f"nodes {' and '.join(pair)} have a bad link" for pair in self.bad_links]
        return "; ".join((*nodes, *links)) or f"{len(self.hosts)} nodes: all are good"

    def _find(self) -> None:
        """Judge all nodes anew by all results so far, since a new turn may change the usual figures."""
        usual = self._usual()
        cleared = {node for node in self.hosts if self._is_cleared(node, usual)}
        self.findings = {node: self._finding(node, usual, cleared) for node in self.hosts}
        # Both nodes of a test have it; it counts once.
        tests = [test for node in self.hosts for test in self._tests[node] if node == min(test.nodes)]
        bad = [test.nodes for test in tests if test.tells_link and not usual.is_good_link(test)]
        self.bad_links = tuple(tuple(sorted(nodes)) for nodes in bad if nodes <= cleared)

    def _next_pairs(self) -> Iterator[tuple[str, str]]:
        """Pair each node in doubt with a good one, or else with another in doubt, but never twice with the same one.

        A node that gave no answer is tested a second time, since its first test may have taken long to load. It gets no
        third test, because a turn with such a node takes the whole time of a test.
        """
        in_doubt = {NodeVerdict.UNTOLD: TURNS_MAX, NodeVerdict.NO_ANSWER: 2}
        doubtful = dict.fromkeys(
            node for node, finding in self.findings.items() if len(self._tests[node]) < in_doubt.get(finding.verdict, 0)
        )
        good = dict.fromkeys(node for node, finding in self.findings.items() if finding.verdict is NodeVerdict.GOOD)
        for partners in (good, doubtful):
            for node in tuple(doubtful):
                known = frozenset({node}).union(*(test.nodes for test in self._tests[node]))
                partner = next((each for each in partners if each not in known), None)
                if node in doubtful and partner is not None:
                    del doubtful[node], partners[partner]
                    yield node, partner

    def _results_of(self, node: str) -> list[PairResult]:
        return [test.results[node] for test in self._tests[node] if node in test.results]

    def _gflops(self, node: str) -> float | None:
        return max((each.gflops for each in self._results_of(node) if each.gflops is not None), default=None)

    def _gpu(self, node: str) -> str:
        return next((result.gpu for result in self._results_of(node)), "")

    def _usual(self) -> _Usual:
        """Return the usual figures: of the best product of each node, and of all links that are not broken."""
        gflops: dict[str, list[float]] = {"": []}
        mb_s: dict[tuple[object, ...], list[float]] = {}
        for node, tests in self._tests.items():
            if (best := self._gflops(node)) is not None:
                for gpu in {"", self._gpu(node)}:
                    gflops.setdefault(gpu, []).append(best)
            for test in tests:
                mb_s.setdefault(test.kind, []).extend([test.mb_s] if test.mb_s else [])
        return _Usual(
            {gpu: _upper_median(of_kind) for gpu, of_kind in gflops.items()},
            {kind: _upper_median(of_kind) for kind, of_kind in mb_s.items()},
        )

    def _is_wrong(self, node: str) -> bool:
        return any(result.wrong for result in self._results_of(node))

    def _is_cleared(self, node: str, usual: _Usual) -> bool:
        """Whether a node is good: it has a good link and a right product of usual speed."""
        has_good_link = any(usual.is_good_link(test) for test in self._tests[node])
        return has_good_link and not self._is_wrong(node) and not usual.is_slow(self._gpu(node), self._gflops(node))

    def _finding(self, node: str, usual: _Usual, cleared: set[str]) -> NodeFinding:
        mb_s = max((each.mb_s for each in self._results_of(node) if each.mb_s is not None), default=None)
        link = "no sum came" if mb_s is None else f"{mb_s:,.0f} MB/s at best"
        verdict, text = self._judge(node, usual, cleared, link)
        return NodeFinding(verdict, self._gflops(node), mb_s, text)

    def _judge(self, node: str, usual: _Usual, cleared: set[str], link: str) -> tuple[NodeVerdict, str]:
        """Return the first verdict that holds for a node, with its reason; `link` says how fast its best link is."""
        results, gflops, gpu = self._results_of(node), self._gflops(node), self._gpu(node)
        why = next((f": {result.text}" for result in reversed(results) if result.text), "")
        if node in cleared:
            return NodeVerdict.GOOD, "is good"
        if self._is_wrong(node):
            return NodeVerdict.WRONG, "computed a matrix product that is not the right one"
        if gflops is None:
            return NodeVerdict.NO_ANSWER, f"gave no answer{why}"
        if usual.is_slow(gpu, gflops):
            slow = f"computes {gflops:,.0f} GFLOP/s, and {usual.gflops[gpu]:,.0f} are usual"
            undecided = NodeVerdict.UNTOLD, f"{slow}, but it has only one result"
            return (NodeVerdict.SLOW, slow) if len(results) > 1 else undecided
        told = [test for test in self._tests[node] if test.tells_link]
        partners = sorted(frozenset().union(*(test.nodes for test in told)) - {node})
        has_good_partner = not cleared.isdisjoint(partners)
        if len(partners) > 1 and has_good_partner and not any(map(usual.is_good_link, told)):
            return NodeVerdict.BAD_LINK, f"has a bad link with {' and '.join(partners)}: {link}{why}"
        return NodeVerdict.UNTOLD, f"was tested with too few good nodes{why}"


def _upper_median(figures: Iterable[float]) -> float:
    """Return the middle figure; 0 without any. Of two it is the higher one, so that the lower one may prove slow."""
    ordered = sorted(figures)
    return ordered[len(ordered) // 2] if ordered else 0.0
