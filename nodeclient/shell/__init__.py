"""The shell of the agent: it carries events to the pure machine in `core`, and carries out its effects.

`node` is the whole of one node. `participation` is its part in a job: it runs the agent in the event loop.
`coordinator_connection` keeps the session with the coordinator, and `join_attempts` prepares each attempt.
`embedded_coordinator` starts a coordinator where the node brings one along. `master_probe` finds out whether the master
of a round can be reached. `round_setup` sets up each round, and `worker_command` builds the commands of its workers.
`host_programs` runs the programs that test this host, each as a `timed_command`, and `host_check` those of its health
check. `log_service` sends pieces of log files to the coordinator, and deletes old files. `console` shows the user what
the node does, and `stop_extension` asks systemd for the time that a node needs to leave.
"""
