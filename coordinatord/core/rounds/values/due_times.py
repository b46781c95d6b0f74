"""Names for two times that no clock shows."""

import math

NOW = -math.inf
"""Stands for the present, as the time from which something is due, or until which something waits: it is past by any
clock."""

LONG_AGO = -math.inf
"""Stands for the time of something that has not happened yet. It is before all others: a wait from then on is over."""
