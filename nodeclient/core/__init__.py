"""Every decision of a node, as pure code: without clock, process, socket or log.

The shell hands each event to the `agent` together with the time, and carries out the effects that the agent returns.
`events` and `effects` are these two edges, `agent_settings` has the user's settings, `table` the agent's transitions,
and `notices` the texts for the user. The state of the agent lies in these modules:

- The coordinator: `connection_state` is the session and the search for one, `leaving` is how the node leaves its job.
- The round: `worker_group` has the workers of this node, `exits` tells which of them failed first, and `ending` ends
  them in stages.
- Between rounds: `reuse` knows which processes enter the next round, and `sweeping` waits for the memory of GPUs.
- Kept state: `kept_goals` turns the coordinator's goals for it into effects.
- The host: `host_tests` says when it is checked, and when it is tested with another node. `host_health` judges what a
  check finds.

The shell asks the other modules without the agent. `kept_groups` shortens the report of kept state. `persist_attempt`
is the life of one attempt to write a step to a disk, and selects the steps to delete there. `leftover_stages` limits
how long processes outlive the programs of their workers. `logged_rounds` selects the log files that may be read, and
those to delete. `fleet` decides for `nodeclient up` what the end of one node means.
"""
