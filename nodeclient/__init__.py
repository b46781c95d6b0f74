"""nodeclient: the thin agent on each host, which reaches for what the coordinator decides.

The rooms: `core` holds the agent's decisions and does no IO; the modules beside it carry them out. `workers` starts and
ends the local worker group, `processes` and `guard` see to it that nothing of it is left behind, and `devices`, `ports`
and `addresses` say what this host has to offer. Nothing here imports torch, but for `torchrun`, which runs inside it.
"""
