"""Kept state on a disk: nodes write it in the background, and read it back when no node has it in memory any more.

With `--persist DIR` a training thus survives the loss of all hosts. All nodes of a job write to one directory, each the
parts of the state that it holds. Then one node, the committer, makes the step *whole* by a manifest of all files.

Other packages call `persister`, with the user's `persist_settings`. It carries out the coordinator's orders to write,
whose stages are in `nodeclient.core.persist_attempt`. `steps_on_disk` scans the disk for steps, and `known_steps` has
the results.

- The files: `step_folder` knows which files a step has, and when it is whole. `tensor_file` is the format of tensors,
  which stock torch reads too. `part_files` writes parts out of memory of this node, and reads them back.
- The safeguards: `durable_file` writes a file so that it is whole or not there. `folder_claim` gives the folder of a
  job to one run at a time. `disk_thread` notices a disk that hangs, and `complaints` warns the user.
"""
