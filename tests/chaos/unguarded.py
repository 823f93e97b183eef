"""A worker without guards above it, as on a kernel that has no subreapers: `python -m tests.chaos.unguarded worker APP`."""

if __name__ == "__main__":
    from duetime.cli.hosting import guard
    from duetime.cli.main import main

    guard.guard = lambda: None
    main()
