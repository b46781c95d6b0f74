"""The settings of coordinatord: flags over environment over a file over defaults, as frozen records.

`subcommands` reads a command line. `serve_flags` has the settings of a coordinatord that serves, and `state_flags`
those of the commands that read a state directory. `store_flags` has those of a store in etcd, and `token_flags` those
of `coordinatord token`.
"""
