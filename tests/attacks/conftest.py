"""What attacks share: real servers of the API, and fleets of real workers."""

from tests.api.conftest import app, foreign, http, url
from tests.chaos.conftest import any_fleet, fleet, ground, postgres_fleet, postgres_url, stormy

__all__ = ["any_fleet", "app", "fleet", "foreign", "ground", "http", "postgres_fleet", "postgres_url", "stormy", "url"]
