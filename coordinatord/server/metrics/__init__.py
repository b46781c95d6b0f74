"""The metrics for Prometheus: `rounds` counts from records, `jobs` is read at a `scrape`.

Names and units follow the conventions of Prometheus. Labels are the job and values of which there are few, never a
node.
"""
