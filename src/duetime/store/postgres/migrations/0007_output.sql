-- What attempts printed and logged: one row per attempt that has output, with how much of it is kept and whether no more will come.
-- The row is the lock of its pieces. It goes when the task goes.
create table duetime.output (
    task uuid not null,
    attempt integer not null,
    lane integer not null,
    size bigint not null,
    whole boolean not null,
    kept_at bigint not null,
    primary key (task, attempt)
) with (fillfactor = 80);
create index output_kept on duetime.output (kept_at, task, attempt);

-- Its text in pieces; `start` and `size` are bytes of UTF-8. `words` is made by the client, which splits and folds words as SQLite does:
-- the server's own parser keeps names of hosts and paths of files together, and nobody would find a part of them.
create table duetime.output_chunk (
    task uuid not null,
    attempt integer not null,
    start bigint not null,
    size integer not null,
    text text not null,
    words tsvector not null,
    primary key (task, attempt, start)
);
create index output_words on duetime.output_chunk using gin (words);
