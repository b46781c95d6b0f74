"""nodeclient: the program on each training host, which carries out what the coordinator decides.

The rooms: `core` holds the agent's decisions and does no IO, `shell` carries them out. `workers` starts and ends the
local worker group and leaves nothing of it behind; `forkserver` starts workers warm; `output` moves what they write;
`keep` has the state that they keep, `parts` the memory of it, and `persist` writes it to a disk; `diagnosis` finds out
why one failed. `host` reads what this host has to offer, and `access` finds the tokens that say who this is. `config`
reads the command line that `cli` is given, `operate` holds the commands with which a person asks a coordinator, and
`torchrun` is a rendezvous backend for torchrun. Only `torchrun` imports torch: it runs inside torchrun.
"""
