"""The kernel: who is in a run, which round is on, and who has which rank.

It calls the wings only by the interfaces in `state/wings`. `events` and `effects` are what the machine takes and
returns, and `policy` has the numbers to decide by. The rest lies on four floors. Each may import from those before it,
and from none after it:

1. `values` knows no run: records, ranks and arithmetic.
2. `state` is the state of runs and their members.
3. `queries` only reads the state: what holds, why, and what each node is sent.
4. `transitions` changes the state: the table, its actions, and how records are applied.
"""
