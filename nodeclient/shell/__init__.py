"""The shell of the agent: it carries events to the pure machine in `core`, and carries out its effects.

`node` is the whole of one node, `participation` its part in a job, which gives the agent its events and its timer.
`coordinator_connection` keeps the session, by `join_attempts`. `embedded_coordinator` starts a coordinator where the
node brings one along. `log_service` sends pieces of log files to the coordinator, and deletes old files. `master_probe`
finds out whether the master of a round can be reached. `round_setup` sets up each round, in which `worker_command` is
what each worker runs; `console` is what a user sees of the node. `stop_extension` asks systemd for the time that a node
needs to leave.
"""
