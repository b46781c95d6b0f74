"""Names for two times that no clock shows."""

import math

NOW = -math.inf
"""Stands for the present, as the time from which something is due, or until which something waits: it is past by any
clock."""

LONG_AGO = -math.inf
"""Stands for a time before all others, as for what has not happened yet: what follows after some time is due."""
