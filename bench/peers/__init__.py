"""Other task queues, each driven by one small program, so that they can be measured beside Duetime.

Every program, Duetime's own included (`bench.postgres.duetime`), takes the same verbs on its command line and finds the
database in BENCH_URL:

    setup        create its tables
    submit N     submit N no-op tasks that are due at once, 1,000 a call; say {"rate": tasks per second}
    due          read a JSON array of due instants (seconds since the epoch) from standard input; submit a task for each
    ping         submit one task for each line on standard input
    work MODE    say "ready", wait for a line, and run tasks until SIGTERM

A task carries a reference: the instant at which it was submitted or is due. `work each` says [reference, instant of the start]
for every start; `work count` says [number of starts so far, instant of the first], every 10 ms at most, because a line for
every start would be measured too.
"""
