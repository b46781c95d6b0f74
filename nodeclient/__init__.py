"""nodeclient: the agent on each host, which brings about what the coordinator decides.

The rooms: `core` holds the agent's decisions and does no IO, `shell` carries them out. `workers` starts and ends the
local worker group and leaves nothing of it behind; `forkserver` starts workers warm; `output` moves what they write;
`diagnosis` finds out why one failed. `host` reads what this host has to offer. `config` reads the command line that
`cli` is given, `operate` is what a person asks of a coordinator, and `torchrun` is a rendezvous backend for torchrun.
Nothing here imports torch but `torchrun`, which runs inside it.
"""
