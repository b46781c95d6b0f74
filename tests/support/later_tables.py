"""Tables of a later release than this one."""

from coordinatord.store.migrations import STEPS

LATER_STEPS = (*STEPS, ("CREATE TABLE marks (node TEXT)", "INSERT INTO marks SELECT run FROM records"))
"""The steps that lead to them."""
