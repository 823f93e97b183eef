"""An HTTP handler for worker processes that chaos tests kill; the test itself is the server."""

import os

from duetime import App, RetryPolicy

app = App()
deliver = app.http(
    "deliver", os.environ["CHAOS_HTTP"] + "/{payload.number}", timeout=60, concurrency=20, retry=RetryPolicy(tries=100, base=0.01, cap=0.05)
)
