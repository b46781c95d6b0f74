"""The settings of nodeclient, as frozen records made from flags, the environment, a file and defaults.

`parse` reads the command line, and imports the module with the `command_line` of the chosen subcommand. Three
subcommands start a node: `join` is our own, and `torchrun_flags` has two that are compatible with torchrun and
torch.distributed.launch; `torchrun_rendezvous` translates their rendezvous. The three share `flags` and `flag_values`,
and `build` makes the `join_config` of each. `up` starts `join` on several hosts, and passes its flags on.
`operate` has the commands for operators and developers. Subcommands that connect to a coordinator share `access_flags`.

Nothing is imported here, because people wait for `nodeclient --help` and `nodeclient status`.
"""
