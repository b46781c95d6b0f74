"""What the agent of a node decides, and nothing that it does.

Pure: no clock, process, socket or log. `agent.Agent` takes an event and the time and returns effects; `table` says what
it does in each phase about each thing that can happen; `events` and `effects` are the two edges.
"""
