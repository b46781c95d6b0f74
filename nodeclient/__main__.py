"""`python -m nodeclient` is `nodeclient`."""

from nodeclient.cli import main

if __name__ == "__main__":
    main()
