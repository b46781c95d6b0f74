"""The etcd that the coordinators of a simulated world share: `ModelledEtcd`, with its network and its clock.

Any request may be lost, come late, or be done and not be answered. The cluster may elect a leader of its own, lose its
majority, be slow, and be out of space. Requests are repeated as by `Gateway.call`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from coordinatord.store.etcd.refusals import EtcdRefusedError
from coordinatord.store.etcd.requests import KeyValue
from tests.support.modelled_etcd import ModelledEtcd

if TYPE_CHECKING:  # the world has one
    from tests.sim.etcd_coordinator import EtcdCoordinator
    from tests.sim.world import World

LEASE_S = 5.0
"""How long a lease lasts: the default of coordinatord."""

DELAY_S = (0.001, 0.01)
"""The time that a request or an answer takes at least, and how much longer at most."""

SPIKE = 0.01
"""The share of requests and of answers that are late, as after a retransmission."""

SPIKE_S = 3.0
"""How late they are at most."""

REVOKES_WITHIN_S = 0.5
"""How late etcd notices at most that a lease is over: it looks twice a second."""

RESOURCE_EXHAUSTED = 8
"""gRPC's code for a request that etcd has no space for."""

Answered = Callable[[Any], None]
Changed = Callable[[], None]


class Etcd:
    """One cluster, as its clients see it."""

    def __init__(self, world: World) -> None:
        """Begin with an empty cluster that is well."""
        self._world = world
        self._queue = world.queue
        self._model = ModelledEtcd()
        self._ends: dict[str, float] = {}
        """When each lease is over, in the queue's `now`."""
        self._watchers: dict[EtcdCoordinator, Changed] = {}
        self._changed_at = 0
        """The revision at which the leader key last changed."""
        self._is_calm = False
        self.up = True
        """Whether it has a majority, and a leader of its own."""
        self.full = False
        self.slow_s = 0.0
        """How much longer each answer takes at most."""

    # Faults

    def stop(self) -> None:
        """Take away its majority, or its leader."""
        self._world.trace.note("etcd has no leader")
        self.up = False

    def go_on(self) -> None:
        """Give it a leader again, who renews all leases."""
        if not self.up:
            self._world.trace.note("etcd has a leader")
            self.up = True
            for lease in self._ends:
                self._renew(lease)

    def calm(self) -> None:
        """End all faults."""
        self._is_calm = True
        self.make_room()
        self.speed_up()
        self.go_on()

    def make_room(self) -> None:
        """Give it space again."""
        self.full = False

    def speed_up(self) -> None:
        """Let it answer at its usual speed again."""
        self.slow_s = 0.0

    def end_term(self) -> None:
        """Revoke the lease of the leader, as `coordinatord --step-down` does."""
        leader = self.leader
        if leader is not None and self.up:
            self._expire(str(leader.lease))

    @property
    def leader(self) -> KeyValue | None:
        """The leader key; None if there is none."""
        return self._model.leader

    # Requests

    def request(self, by: EtcdCoordinator, path: str, body: Mapping[str, Any], answered: Answered) -> None:
        """Carry a request to etcd, do it, and carry the answer back; a fault may lose either."""
        self._queue.after(self._delay(), self._arrive, by, path, body, by.commit, answered)

    def _delay(self) -> float:
        chance = self._world.chance
        spike_s = SPIKE_S * chance.random() if not self._is_calm and chance.random() < SPIKE else 0.0
        return DELAY_S[0] + DELAY_S[1] * chance.random() + spike_s

    def _arrive(
        self, by: EtcdCoordinator, path: str, body: Mapping[str, Any], commit: object, answered: Answered
    ) -> None:
        if not self.up or by.is_cut_from_etcd:
            return
        answer = self._do(path, body)
        if path == "/v3/kv/txn" and isinstance(answer, dict) and answer.get("succeeded"):
            by.did(body, commit)
        self._queue.after(self._delay() + self.slow_s * self._world.chance.random(), self._answer, by, answer, answered)

    def _answer(self, by: EtcdCoordinator, answer: Any, answered: Answered) -> None:
        if self.up and not by.is_cut_from_etcd:
            answered(answer)

    def _do(self, path: str, body: Mapping[str, Any]) -> Any:
        if self.full and (path == "/v3/lease/grant" or _puts(body)):
            return EtcdRefusedError(RESOURCE_EXHAUSTED, "etcd is out of space")
        if path == "/v3/lease/keepalive":
            lease = body["ID"]
            if lease in self._ends:
                self._renew(lease)
            return {"result": {"ID": lease, "TTL": str(round(LEASE_S)) if lease in self._ends else "0"}}
        if path == "/v3/lease/revoke":
            self._expire(body["ID"])
            return {}
        before = self.leader
        try:
            answer = self._model.do(path, body)
        except EtcdRefusedError as error:
            return error
        if path == "/v3/lease/grant":
            self._renew(answer["ID"])
        self._notify_watchers(before)
        return answer

    # Leases

    def _renew(self, lease: str) -> None:
        self._ends[lease] = self._queue.now + LEASE_S
        late_s = REVOKES_WITHIN_S * self._world.chance.random()
        self._queue.after(LEASE_S + late_s, self._look, lease)

    def _look(self, lease: str) -> None:
        if self.up and lease in self._ends and self._queue.now >= self._ends[lease]:
            self._expire(lease)

    def _expire(self, lease: str) -> None:
        before = self.leader
        self._ends.pop(lease, None)
        self._model.expire(lease)
        self._notify_watchers(before)

    # Watches

    def watch(self, by: EtcdCoordinator, revision: int, changed: Changed) -> None:
        """Report the next change of the leader key, or the last one if that was at `revision` or later."""
        if self._changed_at >= revision and not by.is_cut_from_etcd and self.up:
            self._queue.after(self._delay(), changed)
        else:
            self._watchers[by] = changed

    def _notify_watchers(self, before: KeyValue | None) -> None:
        leader = self.leader
        if leader == before:
            return
        name = "nobody" if leader is None else leader.value.decode()
        self._world.trace.note("etcd: the leader key names %s", name)
        self._changed_at = self._model.revision
        watchers, self._watchers = self._watchers, {}
        for by, changed in watchers.items():
            if not by.is_cut_from_etcd:
                self._queue.after(self._delay(), changed)


def _puts(body: Mapping[str, Any]) -> bool:
    return any("request_put" in op for op in body.get("success", ()))
