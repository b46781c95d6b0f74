"""The agent of a node: it decides, and carries out nothing.

Pure: no clock, process, socket or log. `agent` takes an event and the time, and returns effects. `table` has its
transitions. `events` and `effects` are the two edges, `agent_settings` are the user's settings. `connection_state` is
the state of the connection to the coordinator, and `worker_group` that of the workers. `exits` tells which worker
failed first, `ending` ends the workers in stages, and `reuse` knows which processes survive into the next round.
`kept_goals` turns the coordinator's goals for kept state into effects, and `kept_groups` groups kept parts for the
protocol. `persist_attempt` is the life of one attempt to write a step to a disk, and selects the steps to delete there.
`leaving` is how a node leaves its job. `sweeping` says how long the end of a round waits for memory of GPUs.
`health_checks` says when this host is checked, which `host_health` judges, and `host_tests` when it is tested with
another node.
`leftover_stages` limits how long processes may outlive the programs of their workers.
`logged_rounds` selects the log files that may be read and deleted, and `notices` has the texts for the user.
Besides the agent, `fleet` decides for `nodeclient up` what the end of one node means.
"""
