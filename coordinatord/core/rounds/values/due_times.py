"""The time of what is due at once."""

import math

NOW = -math.inf
"""Stands for the present, as the time from which something is due, or until which something waits: it is past by any
clock."""
