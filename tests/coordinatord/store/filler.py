"""A program that fills a small disk with records until there is no room, makes room, and goes on.

The errors are asserted here; its exit code shows whether they were right.
"""

import sys
from pathlib import Path

from coordinatord.store.database import Database
from coordinatord.store.interface import StoreError
from tests.support.histories import a_join_of, an_opening, made_at

BATCH = 50


def main() -> None:
    """Fill the directory that the first argument names."""
    directory = Path(sys.argv[1])
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(512 * 1024))
    database = Database.open(directory / "state.db")
    database.append(made_at(0.0, an_opening()))
    batches, trouble = 0, ""
    while not trouble:
        try:
            database.append(made_at(1.0, *(a_join_of(f"n{batches}-{number}") for number in range(BATCH))))
            batches += 1
        except StoreError as error:
            trouble = str(error)
    assert "the disk is full: make room there" in trouble, trouble
    assert len(database.load()) == 1 + batches * BATCH
    ballast.unlink()
    database.append(made_at(2.0, *(a_join_of(f"n{batches}-{number}") for number in range(BATCH))))
    database.close()
    again = Database.open(directory / "state.db")
    assert len(again.load()) == 1 + (batches + 1) * BATCH
    again.close()


if __name__ == "__main__":
    main()
