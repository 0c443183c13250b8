"""`python -m kokuban` is the `kokuban` command."""

from kokuban.cli import main

if __name__ == "__main__":
    main()
