"""`python -m coordinatord` is `coordinatord`."""

from coordinatord.cli import main

if __name__ == "__main__":
    main()
