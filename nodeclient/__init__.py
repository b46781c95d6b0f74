"""nodeclient: the program on each training host, which carries out what the coordinator decides.

The packages: `core` holds the agent's decisions and does no IO, `shell` carries them out. `workers` starts and ends the
local worker group and leaves nothing of it behind; `forkserver` starts workers warm; `output` moves their output.
`keeping` has the state that workers keep: its memory, its way to other nodes, and to a disk. `diagnosis` finds out why
a worker failed. `host` finds the devices, addresses and limits of this host, and `access` the tokens for a coordinator.
`cli` is the program: `config` reads its command line, and `operate` has the commands for operators. `remote` starts
nodes on several hosts, for `nodeclient up`. `torchrun` is a rendezvous backend for torchrun. Only `torchrun` imports
torch: it runs inside torchrun.
"""
