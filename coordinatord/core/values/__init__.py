"""The first floor: values and sums that know no run.

`records` are the durable facts, each with its reason; `admin_requests` are operators' requests. `ranks` assigns ranks,
`root_cause` finds the failure that came first, `time_ledger` counts where the time went, `round_history` keeps the last
rounds, `time_series` what charts show, `training_progress` the steps that nodes report, and `deadline_heap` the
deadlines of many things. `shards` says whether kept parts make a step whole, and `resume_plan` which node gets them
from which other one. `copy_plan` says which nodes keep copies of what. `look_comparison` compares two looks at the
workers, and `lateness` when workers arrived in collectives.
"""
