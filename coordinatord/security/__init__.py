"""Who is let in: the coordinator's key, the tokens that it knows, and the one gate before all that it serves.

`identity` has the key and the certificate, `token_store` the hashes of tokens in the state directory, and
`browser_sessions` what stands for a token in a browser. `gatekeeper` decides about each request and each session.
`setup` makes all of this at the first start, and reads it again later. `passing_tokens` removes the token files of
coordinators that were killed. Of jobs only their ids are known here, and of HTTP only one header.
"""
