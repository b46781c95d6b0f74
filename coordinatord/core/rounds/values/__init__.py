"""The first floor: values and arithmetic that know no run.

* `records` are the durable facts. `admin_requests` are operators' requests.
* `ranks` assigns ranks to nodes, and `root_cause` judges why a round ended. `judged_host` is the judgement on a host.
* `time_ledger` counts where the time of a run went. `round_history` has its last rounds.
* `training_progress` has the steps that nodes report, how fast these are done, and how long they take.
* `resume_point` is the step that a round resumes from.
* `deadline_heap` has the deadlines of many keys, and `due_times` times that no clock shows.
"""
