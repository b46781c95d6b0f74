"""The settings of nodeclient: flags over environment over defaults, in frozen records that are handed down.

`parse` reads a command line: it imports the module that has the `command_line` of the chosen subcommand. Three of them
start a node: that of `join` is ours, `torchrun_flags` has those of torchrun and of torch.distributed.launch. They share
`flags`, `flag_values` and `build`; `join_config` is the result of each. Only torchrun's have `torchrun_rendezvous`.
All that speak to a coordinator have `access_flags`.
`operate` has the commands for operators, and `crash_replay` is for those who look for a bug.

Nothing is imported here, since a person waits for `nodeclient --help` and `nodeclient status`.
"""
