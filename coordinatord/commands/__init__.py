"""The subcommands of `coordinatord`.

`serve` opens the store and imports `daemon`, which runs the server. `reload` reloads its settings on SIGHUP, and
`delayed_end` delays its end while nodes need it. If several coordinators share the store, `turns_to_lead` lets this one
stand by until it leads, and `shared_access` synchronizes key and tokens.

`state` shows a state directory, or a shared store by `shared_state`, and `replay` the records of a run; both use
`offline_replay`, and print the objects of `json_output` for programs. `store_copy` copies a store, `step_down` makes
the leader stand by, and `token` makes and revokes access tokens.
"""
