"""The HTTP API: routes as data, msgspec types on both sides, problems by RFC 9457. Knows App and its client, never the store."""
