"""``python -m lastwrite``: the command line."""

from lastwrite.cli import main

if __name__ == "__main__":
    main()
