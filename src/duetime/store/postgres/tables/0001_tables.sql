-- Tables. The name `duetime.` stands for the schema that the store was opened with. Instants are microseconds since
-- the epoch.

-- Which functions (`functions/*.sql`) the schema has: the program's number for them, and a digest of their text.
create table duetime.functions (
    one boolean primary key default true check (one),
    version integer not null,
    digest text not null,
    made_at bigint not null
);

-- Single facts. `gates_version` and `lanes_version` count changes, so that claims notice that what a process
-- remembers is old. `incarnation` is the server's timeline; after a fail-over nobody claims before `open_at`.
-- `identity` tells this store from others.
create table duetime.control (
    one boolean primary key default true check (one),
    identity uuid not null default gen_random_uuid(),
    gates_version bigint not null default 0,
    lanes_version bigint not null default 0,
    incarnation text not null default '',
    open_at bigint not null default 0
) with (fillfactor = 50);
insert into duetime.control default values;

-- Two numbers that no transaction takes back and no old view hides (I7): `horizon` is the latest time that floors may
-- have been proved by, and `set_backs` counts how often a writer found the clock behind that.
create sequence duetime.horizon;
create sequence duetime.set_backs;
select nextval(s.tableoid) from duetime.set_backs as s;  -- the first call does not count

-- What a claim scans and a gate skips. Never written by add, claim or settle. Below `floor` the lane has no entry
-- and gets none, if the clock was not set back since: `set_backs` is what it was when that was proved. Ids are
-- random: a fail-over may take a lane away again that processes remember, and its number must not come to mean
-- another one.
create table duetime.lane (
    id integer primary key default 1 + (random() * 2147483646)::integer,
    handler text not null,
    collection text not null,
    priority smallint not null,
    floor bigint not null default 0,
    set_backs bigint not null default 0,
    unique (handler, collection, priority)
) with (fillfactor = 70);

-- Live tasks that are not whole in their location (I1, I2).
create table duetime.task (
    id uuid primary key,
    lane integer not null,
    handler text not null,
    key text,
    payload text not null,
    due_at bigint not null,
    submitted_at bigint not null,
    submitted_by text not null,
    expires_at bigint,
    timeout double precision,
    retry text,
    extras text,
    schedule text,
    planned_at bigint
);
create unique index task_key on duetime.task (handler, key) where key is not null;
create index task_expiry on duetime.task (expires_at) where expires_at is not null;

-- New tasks on their way into the functions that add them: columns, one value of this type for a whole call. An
-- array that is null stands for nulls; lanes, handlers and submitters of one element stand for all. `least_id` is
-- the least id, `newest_at` the time in the greatest; nothing with such an id can have finished before `since_at`.
-- Values are made by the function `new_tasks`.
create type duetime.new_tasks as (
    least_id uuid,
    since_at bigint,
    newest_at bigint,
    ids uuid[],
    lanes integer[],
    handlers text[],
    payloads text[],
    dues bigint[],
    delays bigint[],
    submitters text[],
    keys text[],
    expiries bigint[],
    expiries_in bigint[],
    timeouts double precision[],
    retries text[],
    extras text[],
    schedules text[],
    planned bigint[]
);

-- Tasks that only time holds back. `pos` is the later of the due time and the moment of insertion (I3). Where
-- `payload` and what follows are not null the entry is whole (I2): they are all there is of the task. `size` is how
-- many bytes the payload has; null: not known here. `doubtful`: added by an old view (I14).
create table duetime.due (
    lane integer not null,
    pos bigint not null,
    id uuid not null,
    due_at bigint not null,
    expires_at bigint,
    attempt integer not null,
    tries integer not null,
    crashes integer not null,
    size integer,
    payload text,
    submitted_at bigint,
    submitted_by text,
    doubtful boolean,
    check (num_nulls(payload, submitted_at, submitted_by) in (0, 3))
);
create index due_position on duetime.due (lane, pos);
create unique index due_id on duetime.due (id);

-- Tasks that wait for something other than time; `waiting` counts what is still missing.
create table duetime.held (
    id uuid primary key,
    lane integer not null,
    reason text not null,
    waiting integer not null,
    due_at bigint not null,
    expires_at bigint,
    attempt integer not null,
    tries integer not null,
    crashes integer not null
);

-- A child waits for its parent to end.
create table duetime.edge (
    parent uuid not null,
    child uuid not null,
    needs text not null,
    primary key (parent, child)
);
create index edge_child on duetime.edge (child);

-- Pull workers are workers in other languages, which a server speaks for. `pull_lease` is how many seconds one
-- counts as alive without a beat; null: not a pull worker. `lease` of a pull worker is 0, because claims wait for
-- the longest lease after a fail-over, and it cannot be stopped by waiting.
create table duetime.worker (
    id text primary key,
    host text not null,
    pid integer not null,
    slots text not null,
    started_at bigint not null,
    lease double precision not null,
    beat bigint not null,
    beat_at bigint not null,
    seen_gates bigint not null,
    pull_lease double precision
) with (fillfactor = 50);

-- One row per claimed batch. An index into the arrays is an attempt; its bit in `done` says that it has ended, its bit
-- in `cancel` that it was told to stop; `open` counts those that have not ended. The row is the lock for all that
-- happens to its attempts. Of lanes, expiries, attempts, tries, crashes, submitted and submitters that are the same
-- for all attempts there is one. Compressing the arrays would cost more time than writing them. Tasks that stood whole
-- in due stand whole here: an attempt with a payload has no row in `task`. No payloads at all: none is whole;
-- `submitted` tells it too. No id is below `first_id` or above `last_id`, so that most claims need not be opened to
-- look for one.
create table duetime.claim (
    worker text not null,
    number bigint not null,
    claimed_at bigint not null,
    open integer not null,
    done varbit not null,
    cancel varbit not null,
    first_id uuid not null,
    last_id uuid not null,
    tasks uuid[] not null,
    lanes integer[] not null,
    dues bigint[] not null,
    expiries bigint[] not null,
    attempts integer[] not null,
    tries integer[] not null,
    crashes integer[] not null,
    payloads text[],
    submitted bigint[],
    submitters text[],
    primary key (worker, number)
) with (fillfactor = 70);
-- Claims that ended while an old snapshot is held cannot be removed; who looks for new ids must not walk over them.
create index claim_last on duetime.claim (last_id);
alter table duetime.claim alter tasks set storage external, alter lanes set storage external,
    alter dues set storage external,
    alter expiries set storage external, alter attempts set storage external, alter tries set storage external,
        alter crashes set storage external,
    alter payloads set storage external, alter submitted set storage external, alter submitters set storage external;

-- How far running attempts say they are. Worth nothing after a crash of the server, so not logged.
create unlogged table duetime.progress (
    id uuid primary key,
    attempt integer not null,
    fraction double precision not null,
    text text not null
);

-- Finished tasks, by state and by time, so that retention drops whole tables.
create table duetime.history (
    id uuid not null,
    lane integer not null,
    handler text not null,
    key text,
    payload text not null,
    due_at bigint not null,
    submitted_at bigint not null,
    submitted_by text not null,
    expires_at bigint,
    timeout double precision,
    retry text,
    extras text,
    schedule text,
    planned_at bigint,
    state text not null,
    outcome text,
    attempt integer not null,
    tries integer not null,
    crashes integer not null,
    worker text,
    started_at bigint,
    finished_at bigint not null,
    result text,
    error text
) partition by list (state);
create table duetime.history_succeeded partition of duetime.history for
    values in ('succeeded') partition by range (finished_at);
create table duetime.history_failed partition of duetime.history for
    values in ('failed') partition by range (finished_at);
create table duetime.history_cancelled partition of duetime.history for
    values in ('cancelled') partition by range (finished_at);
create table duetime.history_dropped partition of duetime.history for
    values in ('dropped') partition by range (finished_at);
create table duetime.history_expired partition of duetime.history for
    values in ('expired') partition by range (finished_at);
create index history_id on duetime.history (id);
create index history_finished on duetime.history (finished_at, id);
create index history_key on duetime.history (handler, key, finished_at) where key is not null;

-- Ended attempts that were not the task's last; the last one stands in the task's own row of history.
create table duetime.attempt (
    task uuid not null,
    attempt integer not null,
    outcome text not null,
    worker text,
    started_at bigint,
    finished_at bigint not null,
    error text
) partition by range (finished_at);
create index attempt_task on duetime.attempt (task);

-- How many tasks a lane has in a state ('live' or a final one): the sum of these rows (I16). Every batch adds its
-- own, so that nobody waits for a counter; a duty folds them.
create table duetime.tally (
    lane integer not null,
    state text not null,
    n bigint not null
);

-- How far the time in an id was ever ahead of `submitted_at` (I17): by at most `lead`, of ids whose time is before
-- `until`. Rows are only ever added, so nobody waits for whoever adds one in a long transaction; a duty removes
-- those that others cover.
create table duetime.ahead (
    lead bigint not null,
    until bigint not null
);

create table duetime.gate (
    handler text not null,
    collection text not null,
    action text not null,
    until_at bigint,
    note text not null,
    set_by text not null,
    set_at bigint not null,
    primary key (handler, collection)
);

create table duetime.handler (
    name text primary key,
    declaration text not null
);

-- Tables whose rows come and go are vacuumed by what changed, not by a share of their size: with ten million waiting
-- tasks a fifth of the table would be two million dead rows.
alter table duetime.due set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
alter table duetime.task set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
alter table duetime.claim set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000,
        toast.autovacuum_vacuum_cost_delay = 0);
alter table duetime.worker set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0);
alter table duetime.tally set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);

-- A schedule: what people asked for (spec) and what firing made of it (state), both JSON. What is searched by stands
-- in columns of its own. `version` counts writes and is the fence of firing. `waits`: the end of a run makes it due.
-- Names are ordered by code points everywhere.
create table duetime.schedule (
    name text collate "C" primary key,
    version bigint not null,
    id text not null,
    handler text not null,
    collection text not null,
    revision bigint not null,
    next_at bigint,
    waits boolean not null,
    paused boolean not null,
    declared bigint,
    created_at bigint not null,
    changed_at bigint not null,
    changed_by text not null,
    spec text not null,
    state text not null
) with (fillfactor = 70);
-- With handler and collection, so that those under a closed gate are passed over without a look at their rows.
create index schedule_next on duetime.schedule (next_at, name) include (handler, collection) where next_at is not null;

-- Occurrences that became no task. They outlive their schedule.
create table duetime.skip (
    id bigint generated always as identity primary key,
    schedule text not null,
    planned_at bigint not null,
    until_at bigint not null,
    count bigint not null,
    reason text not null,
    at bigint not null,
    note text not null
);
create index skip_planned on duetime.skip (schedule, planned_at, id);
create index skip_at on duetime.skip (at);

create table duetime.calendar (
    name text collate "C" primary key,
    definition text not null
);

-- Who performs a duty, and until when nobody else needs to.
create table duetime.duty (
    name text collate "C" primary key,
    holder text not null,
    until_at bigint not null
) with (fillfactor = 50);

alter table duetime.schedule set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000);
alter table duetime.duty set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0);

-- Tokens. Of a secret only its digest is kept; the one before the last rotation is good until `old_until_at`. Scopes
-- and handlers are JSON. A removed token is gone; the audit remembers it. The table is small and its last uses are
-- written often.
create table duetime.token (
    id text primary key,
    name text collate "C" not null unique,
    version bigint not null,
    scopes text not null,
    handlers text not null,
    digest text not null,
    old_digest text,
    old_until_at bigint,
    rate double precision,
    note text not null,
    created_at bigint not null,
    created_by text not null,
    rotated_at bigint,
    expires_at bigint,
    last_used_at bigint
) with (fillfactor = 50);

-- What operators did: who, what, on what, when, from where, and how it ended. Nothing here refers to other tables,
-- so it outlives all.
create table duetime.audit (
    id text collate "C" primary key,
    at bigint not null,
    by text not null,
    token text,
    action text not null,
    subject text not null,
    origin text not null,
    outcome text not null,
    detail text not null
);
create index audit_at on duetime.audit (at, id);
create index audit_by on duetime.audit (by, at, id);
create index audit_subject on duetime.audit (subject, at, id);

-- Requests that their callers have named (Idempotency-Key): written before the task that they ask for, with the id
-- that it gets.
create table duetime.request (
    caller text collate "C" not null,
    key text collate "C" not null,
    digest text not null,
    task text not null,
    at bigint not null,
    primary key (caller, key)
);
create index request_at on duetime.request (at);

-- What workers count: each process adds to rows of its own, so that nobody waits for another, and a sum over all of
-- them only grows. `number` is that of a process's last write, so that a repeat is known. Rows of processes that
-- have been silent for long are added up under the source ''. The rows are few and updated often.
create table duetime.figure_source (
    source text collate "C" primary key,
    number bigint not null,
    written_at bigint not null
) with (fillfactor = 50);

create table duetime.figure (
    source text collate "C" not null,
    name text collate "C" not null,
    handler text collate "C" not null,
    part text collate "C" not null,
    count bigint not null,
    primary key (source, name, handler, part)
) with (fillfactor = 50);

-- What attempts printed and logged: one row per attempt that has output, with how much of it is kept and whether no
-- more will come. The row is the lock of its pieces. It goes when the task goes.
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

-- Its text in pieces; `start` and `size` are bytes of UTF-8. `words` is made by the client, which splits and folds
-- words as SQLite does: the server's own parser keeps names of hosts and paths of files together, and nobody would
-- find a part of them.
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
