"""`python -m evo`: the same as the command `evo`, also from a checkout that is not installed."""

from evo.cli import main

if __name__ == "__main__":
    main()
