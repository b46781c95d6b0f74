"""What the agent of a node decides, and nothing that it does.

Pure: no clock, process, socket or log. `agent` takes an event and the time and returns effects; `table` says what it
does in each phase about each thing that can happen. `events` and `effects` are the two edges, `agent_settings` is what
the user lets it go by. `connection_state` is how it stands with the coordinator, `worker_group` how its workers are;
`endings` says with what a node ends, `lingering` which workers do not end, and `notices` puts it all into words.
"""
