"""Let `python -m duetime.cli` be the same as `duetime`."""

from duetime.cli.main import main

if __name__ == "__main__":
    main()
