"""The metrics for Prometheus: `rounds` counts records, and `jobs` reads the machine at a `scrape`.

Names and units follow the conventions of Prometheus. Labels are the job and values with few variants, never a node.
"""
