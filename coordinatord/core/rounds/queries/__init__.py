"""The third floor: what only reads the state. A query assigns nothing but its own names.

`conditions` says what holds, and from when; `reasons` describes it in words. `desired_state` is what each node is asked
for, `admission` says which nodes are let in, `master_address` where rank 0 listens. `time_attribution` finds where the
open time of a run is cut in two. `report_builder` builds the report of a failure. `corroboration` says which node is
proved to be gone, and `start_counts` how the workers of a round were begun.
"""
