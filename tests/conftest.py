"""What all tests share."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "tests.coverage_plugin", "tests.servers.fixtures"]

# No example has a time limit of its own: a busy machine must not fail a test. The limit per test still holds.
settings.register_profile("duetime", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("duetime")
