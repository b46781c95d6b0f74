"""Access control of the coordinator: its key, its tokens, and the one gate before all that it serves.

`identity` has the key and the certificate, `token_store` the hashes of tokens in the state directory, and
`browser_sessions` what stands for a token in a browser. `gatekeeper` decides about each request and each session.
`setup` makes all of this at the first start, and reloads it later. `ephemeral_tokens` removes the token files of
coordinators that were killed. This room knows only the ids of jobs, and one header of HTTP.
"""
