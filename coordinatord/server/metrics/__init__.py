"""Serves metrics for Prometheus: `rounds` counts records, `jobs` reads the machine, and `scrape` serves both.

Names and units follow Prometheus' conventions. Labels are the job and values with few variants, never a node: a job of
10,000 nodes has as many series as one of two.
"""
