"""Every decision of the coordinator, as pure code: no clock, socket, file, log or chance.

The one entry is `machine`: `Coordinator` takes an event and the time. It returns records, which have to become durable
first, and effects, which are then carried out. `journal` is the gate that delays effects until their records are
durable. `coordinatord/server/driver` calls both.

The modules beside these serve the machine; neither the kernel nor a wing needs them. `registry` opens and drops runs,
`leases` has when each node counts as silent, and notices that the coordinator was asleep. `admin` carries out what
operators ask for, and `own_end` says when the coordinator may end or has to give way.

Behind `machine` are the kernel, what is shown, and three wings: parts that the kernel calls by an interface, and could
do without.

* `rounds` is the kernel. It decides who is in a run, which is one execution of a job, which round of it is on, and
  who has which rank. It imports no wing, and has their interfaces in `rounds/state/wings`.
* `keeping` is the wing for training state that outlives workers: in memory, copied to other nodes, and on a disk.
* `watching` is the wing that looks at workers: which one holds up the others, and which one is late.
* `judging` is the wing that judges hosts: which one is charged with a failed round, and which ones rounds do without.
* `shown` describes jobs to readers. It may read everything, and nothing in here reads it.
"""
