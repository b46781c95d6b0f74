"""A program that appends batches for ever, and prints after each that it is durable; it is made to be killed."""

import itertools
import sys
from pathlib import Path

from coordinatord.store.database import Database
from tests.support.histories import a_join_of, an_opening, made_at

BATCH = 3


def main() -> None:
    """Write into the directory that the first argument names."""
    database = Database.open(Path(sys.argv[1], "state.db"))
    database.append(made_at(0.0, an_opening()))
    for batch in itertools.count():
        database.append(made_at(float(batch), *(a_join_of(f"n{batch}-{number}") for number in range(BATCH))))
        sys.stdout.write(f"durable {batch}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
