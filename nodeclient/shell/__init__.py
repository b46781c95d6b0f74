"""The shell of the agent: it carries events to the pure machine in `core`, and carries out its effects.

`node` is the whole of one node, and puts the rest together. `participation` is its part in a job: it runs the agent in
an event loop.

- The coordinator: `coordinator_connection` keeps the session with it, and `embedded_coordinator` starts one where the
  node brings it along.
- A round: `master_probe` finds out whether its master can be reached, `round_setup` sets it up, and `worker_command`
  builds the commands of its workers.
- The host: `host_programs` runs the programs that test it, each as a `timed_command`.
- People: `console` shows the user what the node does, and `log_service` sends pieces of log files to the coordinator.
  `stop_extension` asks systemd for the time that a node needs to leave.
"""
