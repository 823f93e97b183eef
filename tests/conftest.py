"""What all tests share."""

import signal

from hypothesis import HealthCheck, settings

# Whoever starts the suite in the background of a shell hands on that ^C is ignored, also to the programs under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["pytester", "tests.coverage_plugin", "tests.servers.fixtures"]

# No example has a time limit of its own: a busy machine must not fail a test. The limit per test still holds.
settings.register_profile("duetime", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("duetime")
