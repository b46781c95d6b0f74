"""Finds the coordinator for nodes and operators, and authenticates both sides.

A token does both. It lets its bearer in, and it has the *pin* of its coordinator: the hash of the coordinator's public
key. So no certificate authority is needed.

`contact_points` chooses which of several coordinators to try next. `keyring` finds the user's tokens. `secured_attempt`
checks a coordinator's key, and only then has the token to send.
"""
