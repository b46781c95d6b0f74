"""Makes the coordinator's records durable.

A record is one fact, such as that a node joined or that a round was formed. All records, applied in order, lead to the
state of all jobs, so a coordinator that starts again reads them.

`database_store` has the base of all stores, and the one of `--ephemeral`. `sqlite_store` is for a state directory, and
`etcd_store` for coordinators that share their records in `etcd`. `interface` has what stores take and return, and their
errors. `directory` locks the state directory, `database` runs SQL, `migrations` has the tables of each version,
`row_codec` converts records to rows and back, `retention` deletes old records, and `error_texts` explains disk errors.
"""
