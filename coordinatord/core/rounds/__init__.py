"""The kernel: who is in a run, which round is on, and who has which rank.

`state/wings` has the only words by which it knows the wings. `events` and `effects` are what the machine takes and
returns, and `policy` has the numbers to decide by. The rest lies on four floors. Each may import from those before it,
and from none after it:

1. `values` knows no run: records, ranks and sums.
2. `state` is what is known of runs and their members.
3. `queries` only reads the state: what holds, why, and what follows for each node.
4. `transitions` changes the state: the table, its actions, and how records are applied.
"""
