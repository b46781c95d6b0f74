"""What Prometheus is shown: `meters` count on the way, `rounds` from records, `jobs` reads at a `scrape`.

Names and units are by the conventions of Prometheus; labels are the job and what there is little of, never a node.
"""
