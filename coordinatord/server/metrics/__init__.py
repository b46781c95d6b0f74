"""What Prometheus is shown: `rounds` is counted from records, `jobs` is read at a `scrape`.

Names and units follow the conventions of Prometheus. Labels are the job and what has few values, never a node.
"""
