"""Finds the coordinator for nodes and operators, and authenticates both sides.

`endpoint` is the address of a coordinator. `contact_points` chooses which of several coordinators to try next.
`keyring` finds the user's tokens. `secured_attempt` checks a coordinator's key, and only then has the token to send.
"""
