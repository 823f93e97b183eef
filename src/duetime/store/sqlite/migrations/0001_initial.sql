-- Tables live in the user's own database under a prefix: in WAL mode a transaction over attached files is not atomic.
-- Instants are microseconds since the epoch.

-- What a claim scans and a gate skips. next_at is never later than the earliest position in `due` (it may be earlier),
-- so a claim looks only into lanes that may have work, however many lanes there are.
create table duetime_lane (
    id integer primary key,
    handler text not null,
    collection text not null,
    priority integer not null,
    next_at integer not null,
    unique (handler, collection, priority)
);
create index duetime_lane_next on duetime_lane (next_at);

-- Every task. While it lives `state` is null and it stands in exactly one of due, held and running;
-- its end is written into the last columns. Moving the row into a history table was not needed here: SQLite
-- has no partitions to drop, and an update touches one tree where a move touches four.
create table duetime_task (
    seq integer primary key,
    id text not null unique,
    lane integer not null references duetime_lane (id),
    key text,
    payload blob not null,
    due_at integer not null,
    submitted_at integer not null,
    submitted_by text not null,
    expires_at integer,
    timeout real,
    retry blob,
    meta text,
    schedule text,
    planned_at integer,
    state text,
    outcome text,
    attempt integer,
    tries integer,
    crashes integer,
    worker text,
    started_at integer,
    finished_at integer,
    result blob,
    error text
);
create index duetime_task_finished on duetime_task (state, finished_at, seq) where state is not null;
create index duetime_task_expiry on duetime_task (expires_at) where expires_at is not null and state is null;
create index duetime_task_key on duetime_task (key) where key is not null;

-- The live task of each (handler, key).
create table duetime_key (
    handler text not null,
    key text not null,
    task integer not null,
    primary key (handler, key)
) without rowid;
create index duetime_key_task on duetime_key (task);

-- Tasks that only time holds back.
create table duetime_due (
    lane integer not null,
    pos integer not null,
    task integer not null,
    due_at integer not null,
    attempt integer not null,
    tries integer not null,
    crashes integer not null,
    primary key (lane, pos, task)
) without rowid;
create unique index duetime_due_task on duetime_due (task);

-- Tasks that wait for something other than time; `waiting` counts what is still missing.
create table duetime_held (
    task integer primary key,
    lane integer not null,
    reason text not null,
    waiting integer not null,
    due_at integer not null,
    attempt integer not null,
    tries integer not null,
    crashes integer not null
);

-- A child waits for its parent to end.
create table duetime_edge (
    parent integer not null,
    child integer not null,
    needs text not null,
    primary key (parent, child)
) without rowid;
create index duetime_edge_child on duetime_edge (child);

-- Claimed attempts.
create table duetime_running (
    id text primary key,
    task integer not null,
    lane integer not null,
    worker text not null,
    claim integer not null,
    attempt integer not null,
    tries integer not null,
    crashes integer not null,
    due_at integer not null,
    claimed_at integer not null,
    cancelling integer not null default 0,
    progress real,
    progress_text text not null default ''
) without rowid;
create index duetime_running_worker on duetime_running (worker);
create unique index duetime_running_task on duetime_running (task);

-- Ended attempts that were not the task's last; the last one stands in the task's own row.
create table duetime_attempt (
    task integer not null,
    attempt integer not null,
    outcome text not null,
    worker text,
    started_at integer,
    finished_at integer not null,
    error text,
    primary key (task, attempt)
) without rowid;

-- Whether a worker lives is told by the lock on its file; its beat and confirmed gates are in that file too, so that
-- neither needs the database's write lock.
create table duetime_worker (
    id text primary key,
    host text not null,
    pid integer not null,
    slots text not null,
    started_at integer not null,
    process text not null
) without rowid;

create table duetime_gate (
    handler text not null,
    collection text not null,
    action text not null,
    until_at integer,
    note text not null,
    set_by text not null,
    set_at integer not null,
    primary key (handler, collection)
) without rowid;

create table duetime_handler (
    name text primary key,
    declaration text not null
) without rowid;

-- Single facts: gates_version.
create table duetime_fact (
    name text primary key,
    value integer not null
) without rowid;
insert into duetime_fact values ('gates_version', 0);
