-- What attempts printed and logged: one row per attempt that has output, with how much of it is kept and whether no more will come.
create table duetime_output (
    number integer primary key,
    task integer not null,
    attempt integer not null,
    size integer not null,
    whole integer not null,
    kept_at integer not null,
    unique (task, attempt)
);

-- Its text in pieces; `start` and `size` are bytes of UTF-8. Numbers are never used twice, because the index of words, which is made
-- where SQLite has FTS5, may know of pieces that a process without it has removed.
create table duetime_output_chunk (
    id integer primary key autoincrement,
    output integer not null,
    start integer not null,
    size integer not null,
    text text not null,
    unique (output, start)
);
