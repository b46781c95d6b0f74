"""The settings of nodeclient, as frozen records made from flags, the environment, a file and defaults.

`parse` reads the command line, and imports the module with the `command_line` of the chosen subcommand. Three
subcommands start a node: `join` has our own, and `torchrun_flags` has those compatible with torchrun and
torch.distributed.launch, with `torchrun_rendezvous`. They share `flags`, `flag_values` and `build`, and make a
`join_config`. Subcommands that connect to a coordinator share `access_flags`. `operate` has the commands for operators
and developers.

Nothing is imported here, because people wait for `nodeclient --help` and `nodeclient status`.
"""
