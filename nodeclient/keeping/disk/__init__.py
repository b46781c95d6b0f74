"""Kept state on a disk: the agents write it beside the training, and read it back where no memory is left.

`tensor_file` has the form of a file of tensors, which stock torch reads too. `durable_file` writes a file so that it is
whole or not there. `folder_claim` gives the folder of a job to one run at a time. `step_folder` knows which files a
step has, and when all of them are there. `part_writer` writes parts out of memory of this node, and `part_reader` reads
them back into it. `steps_on_disk` looks for the steps that there are, and `known_steps` is what it has found.
`disk_thread` notices when the disk hangs, and `complaints` warns the user. Other rooms call `persister`, and
`persist_settings` is what a user chooses. In the agent's core, `persist_attempt` has the stages of a write, and decides
which steps are deleted.
"""
