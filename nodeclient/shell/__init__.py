"""The shell of the agent: it carries events to the pure machine in `core`, and its effects out.

`node` is the whole of one node, `agent_loop` gives the agent its events and its timer. `coordinator_connection` keeps
the session, which begins with an `introduction`. `embedded_coordinator` starts a coordinator where the node brings one
along. `log_service` lets the coordinator read log files, and keeps them in order. `master_probe` looks whether the
master of a round can be reached. `worker_command` is what each worker runs; `console` is what a user sees of the node.
`stop_extension` asks systemd for the time that a node needs to leave.
"""
