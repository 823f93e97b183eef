"""`app.alerts` and `app.channels`: who is told of what."""
