"""The settings of coordinatord: frozen structs, made from flags, environment variables, a file and defaults.

`subcommands` parses the command line. `serve_flags` has the flags of the daemon, `state_flags` those of the commands
that read a state directory, `store_flags` those of a store in etcd, and `token_flags` those of `coordinatord token`.
"""
