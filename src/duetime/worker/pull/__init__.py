"""Guests: workers in other languages. `service` speaks for them, `ear` waits for work, `facts` is what is said."""
