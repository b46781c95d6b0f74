"""The subcommands of `coordinatord`.

`serve` opens the store and imports `serving`, which runs the daemon. Where several coordinators share the store,
`turns_to_lead` has this one stand by until it leads, and `shared_access` has all of them use the same key and the same
tokens. `step_down` has the leader stand by, `shared_state` reads such a store, and `store_copy` copies one. `reload`
reads the settings again, and `until_unused` ends the daemon when no node needs it any more, or, after SIGTERM, none
that ends. `state` shows a state directory. `replay` steps through a history, which `offline_replay` reads from it.
`json_output` has the records that both print for programs. `token` makes and revokes access tokens.
"""
