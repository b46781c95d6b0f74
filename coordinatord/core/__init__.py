"""Every decision of the coordinator, as pure code: no clock, socket, file, log or chance.

The one entry is `machine`: `Coordinator` takes an event and the time. It returns records, which have to become durable
first, and effects, which are then carried out. `events` and `effects` are its two edges, `journal` is the gate that
holds back effects until their records are durable, `policy` has the numbers to decide by.

Behind `machine` are four floors. Each may import from those before it, and from none after it:

1. `values` knows no run: records, ranks and sums.
2. `state` is what is known of runs and their members.
3. `queries` only reads the state: what holds, why, and what follows for each node and each reader.
4. `transitions` changes the state: the table, its actions, and how records are applied.
"""
