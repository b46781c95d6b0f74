"""Which coordinators share a store, as the HTTP API and the command lines show it; see `api`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from coordinatord.protocol.http.answer_fields import ITEMS_MAX, AnyText, Number


class CoordinatorStatus(Struct, frozen=True, kw_only=True):
    """A coordinator that shares its store with others."""

    host: AnyText
    endpoint: AnyText
    """HOST:PORT, where nodes reach it."""
    since: Number
    """When it began to lead or to stand by, in seconds since 1970 by its host's clock."""


class SharedStatus(Struct, frozen=True, kw_only=True):
    """The coordinators that share a store, by the account of the one that leads."""

    leader: CoordinatorStatus
    standbys: Annotated[tuple[CoordinatorStatus, ...], Meta(max_length=ITEMS_MAX)] = ()
    """Those that were there when it looked last."""
    lease_s: Number
    """How long the leader's lease lasts yet."""
    problem: AnyText = ""
    """Why it is not known who stands by now; empty if it is."""
