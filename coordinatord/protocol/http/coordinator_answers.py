"""Which coordinators share a store, as the HTTP API and the command lines show it; see `api`."""

from __future__ import annotations

from typing import Annotated

from coordinatord.protocol.frozen_class import frozen
from coordinatord.protocol.http.answer_fields import ITEMS_MAX, AnyText, Number
from coordinatord.protocol.schema import Length


@frozen(kw_only=True)
class CoordinatorStatus:
    """A coordinator that shares its store with others."""

    host: AnyText
    endpoint: AnyText
    """HOST:PORT, where nodes reach it."""
    since: Number
    """When it began to lead or to stand by, in seconds since 1970 by its host's clock."""


@frozen(kw_only=True)
class SharedStatus:
    """The coordinators that share a store, by the account of the one that leads."""

    leader: CoordinatorStatus
    standbys: Annotated[tuple[CoordinatorStatus, ...], Length(0, ITEMS_MAX)] = ()
    """Those that were there when it looked last."""
    lease_s: Number
    """How long the leader's lease lasts yet."""
    problem: AnyText = ""
    """Why it is not known who stands by now; empty if it is."""
