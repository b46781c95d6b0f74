"""What the agent of a node decides. It carries out nothing.

Pure: no clock, process, socket or log. `agent` takes an event and the time and returns effects; `table` says what it
does in each phase about each thing that can happen. `events` and `effects` are the two edges, `agent_settings` are the
user's settings. `connection_state` is the state of the connection to the coordinator, `worker_group` that of the
workers. `staying` knows which of them go into another round as the same processes, and `worker_departures` what it
means that one is not in its round any more. `kept_goals` is what the coordinator wants of state that is kept in memory,
and `kept_groups` puts what is kept into the protocol's words. `persist_attempt` is the life of one write of a step to a
disk, `disk_retention` says which steps are dropped there, and `lone_write` what a node writes without a coordinator.
`departure` is how a node comes to its end, and `endings` says with what it ends. `lingering` says which workers do not
end, `kept_rounds` which log files may be read and deleted, and `notices` has the texts for the user.
"""
