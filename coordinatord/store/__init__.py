"""Makes the coordinator's records durable: the interface of a store, and its three implementations.

The server uses `interface`. `sqlite_store` implements it for a state directory, `memory_store` for `--ephemeral`, and
`etcd_store` for coordinators that share their records in `etcd`. `database_store` is the base of the first and the
last. `directory` locks the state directory, `database` runs SQL, `migrations` has the tables of each version,
`row_codec` converts records to rows and back, `retention` deletes old records, and `error_texts` explains disk errors.
"""
