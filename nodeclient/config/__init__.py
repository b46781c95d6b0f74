"""The settings of nodeclient: flags over environment over defaults, in frozen records that are handed down.

`parse` reads a command line. It imports the module that has the `command_line` of the chosen subcommand. Three
subcommands start a node: `join` has our own, and `torchrun_flags` has those with the command lines of torchrun and of
torch.distributed.launch. They share `flags`, `flag_values` and `build`, and each makes a `join_config`. The latter two
also need `torchrun_rendezvous`. Subcommands that connect to a coordinator share `access_flags`. `operate` has the
commands for operators, and `crash_replay` runs the events again that led to a bug.

Nothing is imported here, since a person waits for `nodeclient --help` and `nodeclient status`.
"""
