"""Makes small files of those that torch's flight recorder wrote in a real hang, and writes dumps of these.

python -m tests.support.condensed_dumps FOLDER NOTICE > FILE

All entries of these dumps are pending, as the recorders were asked for no others.
"""

import json
import sys
from pathlib import Path
from typing import Any

from nodeclient.diagnosis.recorder_files import dumps_in

ROW = ("collective_seq_id", "p2p_seq_id", "profiling_name", "time_created_ns", "input_sizes", "input_dtypes")
"""The fields that are kept of an entry, after its group and whether it is an exchange with a peer."""


def condense(folder: Path, notice: str) -> str:
    """Return the text of a small file."""
    dumps, problems = dumps_in(folder)
    assert not problems, problems
    return json.dumps(
        {
            "notice": notice,
            "groups": {name: group for dump in dumps.values() for name, group in dump.groups.items()},
            "ranks": {
                rank: [
                    [entry["process_group"][0], entry["is_p2p"], *(entry[name] for name in ROW)]
                    for entry in dump.entries
                ]
                for rank, dump in dumps.items()
            },
        },
        separators=(",", ":"),
    )


def dumps_of(small: Path) -> dict[int, dict[str, Any]]:
    """Return the dump of each rank, of a small file."""
    data = json.loads(small.read_text(encoding="utf-8"))
    groups = data["groups"]
    return {
        int(rank): {
            "version": "2.9",
            "pg_config": {
                name: {"name": name, "desc": text, "ranks": str(ranks)}
                for name, (text, ranks) in groups.items()
                if int(rank) in ranks
            },
            "entries": [
                {
                    "process_group": (group, groups[group][0]),
                    "is_p2p": is_p2p,
                    "retired": False,
                    "state": "scheduled",
                    **dict(zip(ROW, row, strict=True)),
                }
                for group, is_p2p, *row in rows
            ],
        }
        for rank, rows in data["ranks"].items()
    }


if __name__ == "__main__":
    sys.stdout.write(f"{condense(Path(sys.argv[1]), sys.argv[2])}\n")
