"""The store on Valkey or Redis: tasks on their way there, everything SQL-shaped in a SQL store beside it. See docs/design/redis.md."""
