"""Finds the coordinator for nodes and operators, and authenticates both sides.

`endpoint` is the address of a coordinator. `contact_points` chooses which of several coordinators to try next.
`keyring` finds the user's tokens. `secured_attempt` is one attempt to reach a coordinator: it decides on TLS, checks
the key, and then has the token to send.
"""
