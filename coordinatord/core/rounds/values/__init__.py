"""The first floor: values and sums that know no run.

`records` are the durable facts, each with its reason; `admin_requests` are operators' requests. `ranks` assigns ranks,
`root_cause` finds the failure that came first, `time_ledger` counts where the time went, `round_history` keeps the last
rounds, `training_progress` the steps that nodes report, `resume_point` is the step that a round resumes from, and
`deadline_heap` has the deadlines of many things.
"""
