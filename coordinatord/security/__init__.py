"""Who may speak to the coordinator: its key, the tokens that it knows, and the one gate before all that it serves.

`identity` has the key and the certificate, `token_store` the hashes of tokens in the state directory, and
`browser_sessions` what stands for a token in a browser. `gatekeeper` decides about each request and each session.
`setup` makes all of it at the first start and reads it again, and `passing_tokens` takes away what a coordinator that
was killed has left of it. Nothing here knows of jobs but their ids, nor of HTTP but
one header.
"""
