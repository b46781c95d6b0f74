"""The subcommands of `coordinatord`.

`serve` opens the store and imports `daemon`, which runs the server. `reload` reloads its settings on SIGHUP, and
`delayed_end` delays its end while nodes need it. If several coordinators share the store, `turns_to_lead` lets this one
stand by until it leads, and `shared_access` synchronizes key and tokens.

`state` shows a state directory, or a store in etcd by `shared_store`, which also makes a leader step down. `replay`
shows the records of a run. Both use `offline_replay`, and print the objects of `json_output` for programs. `store_copy`
copies a store, and `token` makes and revokes access tokens.
"""
