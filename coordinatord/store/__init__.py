"""Makes the coordinator's records durable: the interface of a store, and its three implementations.

The server uses `interface`. `sqlite_store` and `memory_store` implement it, and so does `etcd_store`, for coordinators
that share a history in `etcd`. `database_store` is the common part of the two on a database. `directory` locks the
state directory, `database` runs statements, `migrations` has the tables of each version, `row_codec` converts records
to rows and back, `retention` deletes old records, and `error_texts` explains the errors of a disk.
"""
