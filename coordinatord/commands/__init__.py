"""The subcommands of `coordinatord`.

`serve` opens the store and imports `serving`, which runs the daemon. If several coordinators share the store,
`turns_to_lead` makes this one stand by until it leads, and `shared_access` gives all of them the same key and tokens.
`step_down` makes the leader stand by, `shared_state` reads a shared store, and `store_copy` copies one. `reload`
reloads the settings, and `until_unused` ends the daemon once no node needs it. `state` shows a state directory.
`replay` steps through a history, which `offline_replay` reads. `json_output` has the records that both print for
programs. `token` makes and revokes access tokens.
"""
