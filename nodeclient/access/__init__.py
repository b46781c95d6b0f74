"""How a node and an operator find the coordinator, prove who they are, and make sure whom they speak to.

`endpoint` is where a coordinator listens. `contact_points` says which of several coordinators is tried next. `keyring`
finds the tokens that a user was given. `secured_attempt` is one attempt to reach a coordinator: TLS or not, the
comparison of its key, and the token that may be sent after that.
"""
