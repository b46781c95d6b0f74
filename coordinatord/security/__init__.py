"""Controls access to the coordinator: its key, its tokens, and the check of each caller.

`identity` has the key and the certificate, and `token_store` the hashes of tokens in the state directory.
`browser_sessions` signs browsers in, which must not store a token. `gatekeeper` accepts or rejects each request and
each node. `setup` makes the key and the first tokens at the first start, and reloads them later. `ephemeral_tokens`
removes the token files of coordinators that were killed. Nothing here knows more of jobs than their ids.
"""
