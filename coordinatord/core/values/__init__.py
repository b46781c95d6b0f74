"""The first floor: values and sums that know no run.

`records` are the durable facts, each with its reason; `admin_requests` are operators' requests. `ranks` assigns ranks,
`root_cause` finds the failure that came first, `time_ledger` counts where the time went, `round_history` keeps the last
rounds, `time_series` what charts show, `training_progress` the steps that nodes report, and `deadline_heap` the
deadlines of many things. `shards` says whether kept parts make a step whole, and `resume_plan` which node gets them
from which other one. `persist_plan` says which node writes which part of a step to the disk, and `copy_plan` which
nodes keep copies of what; `buddies` pairs these nodes. `look_comparison` compares two looks at the workers;
`stack_source` is a node to ask for them. `section_limits` has the phases that scripts have named, `health` what can be
seen of a round, and `reason` why a run changes its state. `lateness` compares when workers arrived in collectives, and
`rest` says whether they no longer arrive in any.
"""
