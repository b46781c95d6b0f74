"""How a node and an operator find the coordinator, and how the two sides authenticate each other.

`endpoint` is where a coordinator listens. `contact_points` chooses which of several coordinators is tried next.
`keyring` finds the tokens that a user was given. `secured_attempt` is one attempt to reach a coordinator: TLS or not,
the comparison of its key, and the token that may be sent after that. It also makes a node's attempts to join.
"""
