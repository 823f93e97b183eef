-- A schedule: what people asked for (spec) and what firing made of it (state), both JSON. What is searched by stands in columns of its own.
-- `version` counts writes and is the fence of firing. `waits`: the end of a run makes it due.
create table duetime_schedule (
    seq integer primary key,
    name text not null unique,
    version integer not null,
    id text not null,
    handler text not null,
    collection text not null,
    revision integer not null,
    next_at integer,
    waits integer not null,
    paused integer not null,
    declared integer,
    created_at integer not null,
    changed_at integer not null,
    changed_by text not null,
    spec text not null,
    state text not null
);
-- With handler and collection, so that those under a closed gate are passed over without a look at their rows.
create index duetime_schedule_next on duetime_schedule (next_at, name, handler, collection) where next_at is not null;

-- Occurrences that became no task. They outlive their schedule.
create table duetime_skip (
    seq integer primary key,
    schedule text not null,
    planned_at integer not null,
    until_at integer not null,
    count integer not null,
    reason text not null,
    at integer not null,
    note text not null
);
create index duetime_skip_planned on duetime_skip (schedule, planned_at);
create index duetime_skip_at on duetime_skip (at);

create table duetime_calendar (
    name text primary key,
    definition text not null
) without rowid;

-- Who performs a duty, and until when nobody else needs to.
create table duetime_duty (
    name text primary key,
    holder text not null,
    until_at integer not null
) without rowid;
