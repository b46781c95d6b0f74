"""The kernel decides who is in a run, which round is on, and who has which rank.

A *run* is one execution of a job, from its first node to its end. A *round* is one formation of its workers: when a
worker fails, or a node comes or goes, the round is stopped, and another one is formed. A *member* is a node that the
run has let in.

The place to begin is `transitions/table`, which has the life of a run. `events` and `effects` are what the machine
takes and returns, and `policy` has the numbers to decide by. The rest lies on four floors. Each may import from those
before it, and from none after it:

1. `values` knows no run: records, ranks and arithmetic.
2. `state` is the state of runs and their members, and has the interfaces of the wings.
3. `queries` only reads the state: what holds, why, and what each node is sent.
4. `transitions` changes the state: the table, its actions, and how records are applied.
"""
