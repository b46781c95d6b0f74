"""What outlives a decision: the interface through which records are made durable, and the places that keep them.

`interface` is what the server uses; `sqlite_store` and `memory_store` are implementations. Behind SQLite: `directory`
locks the state directory, `database` runs statements in a thread, `migrations` has the tables of each version,
`row_codec` turns records into rows and back, `retention` deletes what is old, and `error_texts` explains the errors of
a disk. `etcd_store` is the third implementation, for coordinators that share a history, and `etcd` is the room behind
it. `database_store` is what the two on a database have in common.
"""
