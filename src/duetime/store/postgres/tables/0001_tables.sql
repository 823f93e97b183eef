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
-- remembers is old; `targets_version` those of stored targets, for workers. `incarnation` is the server's timeline;
-- after a fail-over nobody claims before `open_at`, and fences begin with another `epoch`.
-- `identity` tells this store from others.
create table duetime.control (
    one boolean primary key default true check (one),
    identity uuid not null default gen_random_uuid(),
    gates_version bigint not null default 0,
    targets_version bigint not null default 0,
    lanes_version bigint not null default 0,
    incarnation text not null default '',
    epoch bigint not null default 0,
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
-- another one. All lanes with a collection of one handler and priority are a road, and their ids are below zero: the
-- number of the road, from -65536 to -4, and 15 bits for the lane (`make_lanes`).
create table duetime.lane (
    id integer primary key default 1 + (random() * 2147483646)::integer,
    handler text not null,
    collection text not null,
    priority smallint not null,
    floor bigint not null default 0,
    set_backs bigint not null default 0,
    unique (handler, collection, priority)
) with (fillfactor = 70);

-- How far roads are empty, as `lane.floor` says it of lanes.
create table duetime.road (
    id integer primary key,
    floor bigint not null,
    set_backs bigint not null
) with (fillfactor = 70);

-- Live tasks that are not whole in their location (I1, I2). `queued`: another live task has the key, and this one waits
-- behind it and has the key next.
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
    planned_at bigint,
    queued boolean not null default false
);
create unique index task_key on duetime.task (key, handler, queued) where key is not null;
create index task_expiry on duetime.task (expires_at) where expires_at is not null;

-- Which task opened the window of a throttled key, and until when it lasts. `handler` is its present name.
create table duetime.throttled (
    handler text not null,
    key text not null,
    task uuid not null,
    until_at bigint not null,
    primary key (handler, key)
);
create index throttled_until on duetime.throttled (until_at);

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
create index due_road on duetime.due ((lane >> 15), pos) where lane < 0;
create unique index due_id on duetime.due (id);

-- Tasks that wait for something other than time, by `reason`: 'blocked' for other tasks, of which `waiting` counts
-- those still missing; 'declaration' for a worker whose code their payload fits (people read: parked), and then
-- `refused` has the digests of all declarations that it was found not to fit; 'suspended' for the end of their `step`:
-- a signal, or tasks that `waiting` counts; 'limit' for others of its partition (parked, too), of which it `takes` so
-- much.
create table duetime.held (
    id uuid primary key,
    lane integer not null,
    reason text not null,
    waiting integer not null,
    due_at bigint not null,
    expires_at bigint,
    attempt integer not null,
    tries integer not null,
    crashes integer not null,
    refused text not null default '',
    step text not null default '',
    limit_name text,
    part text,
    takes integer,
    priority integer
);
create index held_parked on duetime.held (lane, refused, id) where reason in ('declaration', 'limit');
create index held_parked_id on duetime.held (id) where reason in ('declaration', 'limit');
create index held_limit on duetime.held (limit_name, part, priority desc, due_at, id) where reason = 'limit';

-- Which declarations, by digest, a task was found not to fit; kept while it is tried elsewhere. Rows of tasks that have
-- ended are removed from time to time.
create table duetime.refusal (
    task uuid not null,
    digest text not null,
    primary key (task, digest)
);

-- Steps: parts of a task's work that are saved, and waits; `kind` and the rest as in `model.steps`. `woken`: whoever
-- ended the wait has looked whether the task goes on. Rows of tasks that are gone are removed from time to time.
create table duetime.step (
    number bigint generated always as identity,
    task uuid not null,
    name text collate "C" not null,
    kind text not null,
    attempt integer not null,
    at bigint not null,
    done boolean not null,
    late boolean not null default false,
    woken boolean not null default true,
    data text,
    signal text collate "C",
    wake_at bigint,
    children text,
    primary key (task, name)
);
create index step_waiting on duetime.step (signal, number) where not done and signal is not null;
create index step_wake on duetime.step (wake_at) where not done and signal is not null and wake_at is not null;
create index step_call on duetime.step (number) where not done and children is not null;
create index step_asleep on duetime.step (number) where not woken;

-- Signals that are kept for who waits for their name; `task` has got it. `looked`: whoever sent it has looked whether
-- somebody waits.
create table duetime.signal (
    number bigint generated always as identity,
    name text collate "C" not null,
    id text collate "C" not null,
    data text not null,
    sent_at bigint not null,
    sent_by text not null,
    keep_until bigint not null,
    task uuid,
    looked boolean not null,
    primary key (name, id)
);
create index signal_number on duetime.signal (number);
create index signal_free on duetime.signal (name, number) where task is null;
create index signal_unseen on duetime.signal (number) where not looked;
create index signal_kept on duetime.signal (keep_until);

-- A child waits for its parent to end.
create table duetime.edge (
    parent uuid not null,
    child uuid not null,
    needs text not null,
    primary key (parent, child)
);
create index edge_child on duetime.edge (child);

-- What a child waited for that was cancelled, at `ended_at`, because a parent did not succeed. It waits for them again
-- when that parent is retried. Rows of children that are gone are removed from time to time.
create table duetime.vain (
    child uuid not null,
    parent uuid not null,
    needs text not null,
    ended_at bigint not null,
    primary key (child, parent)
);
create index vain_parent on duetime.vain (parent);

-- A flow: a graph of nodes, each of which is one task or a group of tasks. `graph` is JSON. `stopping`: why nothing
-- more of it starts; `swept`: what was under way then has been told to end. `more`: some of its tasks are still to be
-- made. `version` counts changes. `holds_key`: it lives, or lived last, under its key.
create table duetime.flow (
    id uuid primary key,
    name text not null,
    state text not null,
    version integer not null default 1,
    stopping text,
    swept boolean not null default false,
    more boolean not null default false,
    graph text not null,
    submitted_at bigint not null,
    submitted_by text not null,
    deadline_at bigint,
    finished_at bigint,
    meta text,
    key text,
    holds_key boolean not null default false,
    floor xid8 not null default '0'
);
create unique index flow_key on duetime.flow (name, key) where holds_key;
create index flow_state on duetime.flow (state, id);
create index flow_busy on duetime.flow (id) where more or (stopping is not null and not swept);
create index flow_deadline on duetime.flow (deadline_at)
    where deadline_at is not null and state = 'running' and stopping is null;
create index flow_finished on duetime.flow (finished_at) where finished_at is not null;

-- What is known of the nodes of a flow, by their number in its graph: of how many members the tasks were made, how many
-- of those have ended and failed. `error`: they could not be made. `round` counts reruns. `members`: how many a map
-- has.
create table duetime.node (
    flow uuid not null,
    number integer not null,
    round integer not null default 1,
    opened integer not null default 0,
    ended integer not null default 0,
    failed integer not null default 0,
    error text not null default '',
    members integer,
    primary key (flow, number)
);

-- The tasks of a node that are to be submitted when it is free, a thousand in each row.
create table duetime.draft (
    flow uuid not null,
    node integer not null,
    first integer not null,
    tasks text not null,
    primary key (flow, node, first)
);

-- Which tasks belong to flows. `keeps`: its result is kept for those that read it.
create table duetime.member (
    task uuid primary key,
    flow uuid not null,
    node integer not null,
    round integer not null,
    position integer not null,
    keeps boolean not null
);
create index member_node on duetime.member (flow, node, round, position);

-- Members that have ended, or live again (below zero), and are not counted in their node yet.
create table duetime.arrival (
    seq bigint generated always as identity primary key,
    flow uuid not null,
    node integer not null,
    round integer not null,
    ended integer not null,
    failed integer not null,
    written_by xid8 not null default pg_current_xact_id()
);
create index arrival_flow on duetime.arrival (flow, written_by);

-- What members returned that somebody reads.
create table duetime.value (
    flow uuid not null,
    node integer not null,
    round integer not null,
    position integer not null,
    data text not null,
    items integer,
    primary key (flow, node, round, position)
);

-- What a member's attempt has yielded that somebody reads: `items` of a JSON list from `first` on. Those of the attempt
-- that succeeded stay as long as the flow; a value with `items` stands for them.
create table duetime.piece (
    flow uuid not null,
    node integer not null,
    round integer not null,
    position integer not null,
    first integer not null,
    items integer not null,
    attempt integer not null,
    data text not null,
    primary key (flow, node, round, position, first)
);

-- Pull workers are workers in other languages, which a server speaks for. `pull_lease` is how many seconds one
-- counts as alive without a beat; null: not a pull worker. `lease` of a pull worker is 0, because claims wait for
-- the longest lease after a fail-over, and it cannot be stopped by waiting. `declared`: the digest of its declaration
-- of each handler. `concurrency`: its slots over all handlers; null: the sum of theirs. `draining`: it may claim
-- nothing. `lost_at` is set in the transaction that takes a dead one away, for those who are told of it.
create table duetime.worker (
    id text primary key,
    host text not null,
    pid integer not null,
    slots text not null,
    concurrency integer,
    started_at bigint not null,
    lease double precision not null,
    beat bigint not null,
    beat_at bigint not null,
    seen_gates bigint not null,
    pull_lease double precision,
    declared text not null default '{}',
    draining boolean not null default false,
    version text,
    python text,
    lag double precision not null default 0,
    lost_at bigint
) with (fillfactor = 50);

-- Limits of the whole fleet: what code declares and what an operator has set instead. `uses`: what an attempt of each
-- handler takes. The row is the lock of all permits of the limit.
create table duetime.fleet_limit (
    name text primary key,
    declared integer not null,
    uses jsonb not null,
    version bigint not null default 1,
    own integer,
    until_at bigint,
    note text not null default '',
    set_by text not null default '',
    set_at bigint,
    by text,
    rates text not null default '[]',
    own_rates text,
    over text not null default 'wait'
) with (fillfactor = 70);

-- What workers have of them; it goes with the worker. `number` is that of the worker's last call, `seen` the version
-- of the limit that it goes by, `since` when an attempt of it has waited for long that cannot begin
-- (model.limit.yields).
create table duetime.permit (
    name text not null references duetime.fleet_limit,
    worker text not null references duetime.worker on delete cascade,
    permits integer not null,
    wanted integer not null,
    seen bigint not null,
    number bigint not null,
    since bigint,
    primary key (name, worker)
) with (fillfactor = 50);
create index permit_worker on duetime.permit (worker);

-- Attempts that a counted limit has admitted (model/partitions.py): what each takes of which partition. `attempt` null:
-- it may go on, not before `at`, and nobody has claimed it yet. A row counts as long as its attempt is open. The row of
-- the limit is the lock of all of them.
create table duetime.admitted (
    task uuid not null,
    name text not null,
    part text not null,
    takes integer not null,
    attempt integer,
    at bigint not null,
    primary key (task, name)
) with (fillfactor = 70);
create index admitted_part on duetime.admitted (name, part);
alter table duetime.admitted set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);

-- Numbers that an operator has set for single partitions.
create table duetime.partition (
    name text not null,
    part text not null,
    own integer not null,
    until_at bigint,
    note text not null,
    set_by text not null,
    set_at bigint not null,
    primary key (name, part)
);

-- What is spent of the rates of partitions, by the number of the rate; rows of the past are deleted.
create table duetime.spent (
    name text not null,
    part text not null,
    rate integer not null,
    at bigint not null,
    used bigint not null,
    primary key (name, part, rate)
) with (fillfactor = 70);
create index spent_at on duetime.spent (at);
alter table duetime.spent set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);

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
create index claim_last on duetime.claim (last_id) where worker <> '';
alter table duetime.claim alter tasks set storage external, alter lanes set storage external,
    alter dues set storage external,
    alter expiries set storage external, alter attempts set storage external, alter tries set storage external,
        alter crashes set storage external,
    alter payloads set storage external, alter submitted set storage external, alter submitters set storage external;

-- Attempts whose work somebody outside has accepted. Each stands in a claim of its own that no worker holds (''), with
-- a number below zero; `sender` is the worker that handed the work over. They time out at `report_at`: `deadline_at`,
-- or earlier after `silence` microseconds without a report. `location`: where the work can be withdrawn; `withdrawing`:
-- it was told to stop, and nobody has told that location yet. The claim's row is the lock, here too.
create table duetime.accepted (
    id uuid primary key,
    attempt integer not null,
    number bigint not null,
    sender text not null,
    deadline_at bigint not null,
    silence bigint,
    report_at bigint not null,
    location text,
    withdrawing boolean not null default false
) with (fillfactor = 70);
create index accepted_report on duetime.accepted (report_at);
create index accepted_withdrawing on duetime.accepted (id) where withdrawing;
create sequence duetime.accepted_number increment by -1;

-- How far running attempts say they are. Worth nothing after a crash of the server, so not logged.
create unlogged table duetime.progress (
    id uuid primary key,
    attempt integer not null,
    fraction double precision not null,
    text text not null
);

-- Finished tasks, by state and by time, so that retention drops whole tables. `kept`: the task outlives the others of
-- its state, because its handler says so, and was set aside before their table was dropped (`make_kept`).
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
    error text,
    detail text,
    fingerprint text,
    kept boolean not null default false
) partition by list (state);
create table duetime.history_succeeded partition of duetime.history for
    values in ('succeeded') partition by list (kept);
create table duetime.history_failed partition of duetime.history for
    values in ('failed') partition by list (kept);
create table duetime.history_cancelled partition of duetime.history for
    values in ('cancelled') partition by list (kept);
create table duetime.history_dropped partition of duetime.history for
    values in ('dropped') partition by list (kept);
create table duetime.history_expired partition of duetime.history for
    values in ('expired') partition by list (kept);
create table duetime.history_succeeded_recent partition of duetime.history_succeeded for
    values in (false) partition by range (finished_at);
create table duetime.history_failed_recent partition of duetime.history_failed for
    values in (false) partition by range (finished_at);
create table duetime.history_cancelled_recent partition of duetime.history_cancelled for
    values in (false) partition by range (finished_at);
create table duetime.history_dropped_recent partition of duetime.history_dropped for
    values in (false) partition by range (finished_at);
create table duetime.history_expired_recent partition of duetime.history_expired for
    values in (false) partition by range (finished_at);
create index history_id on duetime.history (id);
create index history_finished on duetime.history (finished_at, id);
-- Only tasks that ended while an attempt failed have one.
create index history_failed_fingerprint on duetime.history_failed (fingerprint, finished_at, id);
create index history_cancelled_fingerprint on duetime.history_cancelled (fingerprint, finished_at, id)
    where fingerprint is not null;
create index history_key on duetime.history (handler, key, finished_at) where key is not null;

-- Ended attempts that were not the task's last; the last one stands in the task's own row of history. Of many the
-- first and the last are kept (`leave_out`). `kept` as in history.
create table duetime.attempt (
    task uuid not null,
    attempt integer not null,
    outcome text not null,
    worker text,
    started_at bigint,
    finished_at bigint not null,
    error text,
    detail text,
    kept boolean not null default false
) partition by list (kept);
create table duetime.attempt_recent partition of duetime.attempt for values in (false) partition by range (finished_at);
create index attempt_task on duetime.attempt (task, attempt);

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
    automatic boolean not null default false,
    probe_at bigint,
    probe_every double precision,
    primary key (handler, collection)
);

-- Handlers whose collections share its starts, under their present names: because code says so (`declared`), or by
-- weights that somebody has set, a JSON object by collection. `gates_version` counts changes of these too.
create table duetime.fairness (
    handler text primary key,
    declared boolean not null default false,
    weights text not null default '{}',
    note text not null default '',
    set_by text not null default '',
    set_at bigint
);

-- Until when submissions have used up the quotas of handlers, under their present names.
create table duetime.quota (
    handler text primary key,
    used_until bigint not null
) with (fillfactor = 50);

-- Failures in a row of handlers that are to be disabled after some; a success ends one.
create table duetime.streak (
    handler text not null,
    collection text not null,
    failures bigint not null,
    since_at bigint not null,
    last text not null,
    primary key (handler, collection)
);

-- What processes declared, by name and digest; of a name the one with the highest number is the present one.
create table duetime.handler (
    number bigint generated always as identity,
    name text not null,
    digest text not null,
    declaration text not null,
    primary key (name, digest)
);

-- Other names of handlers, as their present declarations say.
create table duetime.alias (
    alias text primary key,
    name text not null
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

-- Tokens. Of a secret only its digest is kept; the one before the last rotation is good until `old_until_at`. Scopes,
-- handlers and addresses are JSON. A removed token is gone; the audit remembers it. The table is small and its last
-- uses are written often.
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
    owner text not null,
    addresses text not null,
    last_used_at bigint
) with (fillfactor = 50);

-- People who are signed in to the dashboard. Of what their browser keeps only a digest is stored, and with which secret
-- of which token they signed in: when that is good no more, the session is over.
create table duetime.session (
    digest text primary key,
    token text not null,
    token_digest text not null,
    origin text not null,
    created_at bigint not null,
    idle_at bigint not null,
    expires_at bigint not null
);

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

-- Secrets, sealed: `key` names the key that opens `sealed`, which is bound to its name and version. Former versions are
-- good until `until_at`.
create table duetime.secret (
    name text collate "C" not null,
    version bigint not null,
    key text not null,
    sealed text not null,
    created_at bigint not null,
    created_by text not null,
    until_at bigint,
    primary key (name, version)
);

-- Versions of artifacts; their bytes are elsewhere, by their hash. `run` is JSON. A version that was removed keeps its
-- row, so that its number is never used again.
create table duetime.artifact (
    name text collate "C" not null,
    sha256 text not null,
    size bigint not null,
    file text not null,
    run text not null,
    note text not null,
    made_at bigint not null,
    made_by text not null,
    version bigint not null,
    kind text not null,
    removed boolean not null default false,
    primary key (name, version)
);
create index artifact_sha256 on duetime.artifact (sha256) where not removed;

-- Artifacts that are being uploaded; `version` is what an upload has become. `signature` is the digest of what its
-- address has to prove.
create table duetime.upload (
    id text primary key,
    name text not null,
    sha256 text not null,
    size bigint not null,
    file text not null,
    run text not null,
    note text not null,
    made_at bigint not null,
    made_by text not null,
    unpack boolean not null,
    signature text not null,
    expires_at bigint not null,
    version bigint
);
create index upload_expires_at on duetime.upload (expires_at, id);

-- Targets that are stored under a handler's name: how its attempts are performed, as JSON. `version` is what
-- `targets_version` was made by this change. Code that declares a handler of that name has its target `shadowed`.
-- `digest` is that of the declaration that came with it.
create table duetime.target (
    name text collate "C" primary key,
    kind text not null,
    definition text not null,
    version bigint not null,
    changed_at bigint not null,
    changed_by text not null,
    shadowed boolean not null,
    digest text not null
);

-- Requests that their callers have named (Idempotency-Key): written before the task that they ask for, with the id
-- that it gets.
create table duetime.request (
    caller text collate "C" not null,
    key text collate "C" not null,
    digest text not null,
    task text not null,
    met boolean not null default false,  -- the task was there already, and its key was kept or replaced
    at bigint not null,
    primary key (caller, key)
);
create index request_at on duetime.request (at);

-- What callers' transactions ask for, until it is carried out after the commit: inserted, locked and deleted, and
-- never changed. A row without `edits` is a cancel.
create table duetime.intent (
    number bigint generated always as identity primary key,
    task uuid not null,
    edits boolean not null,
    due_at bigint,
    priority smallint,
    collection text,
    payload text
);
create index intent_task on duetime.intent (task);

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

-- What happened when (see model/series.py). Each write of figures and each sample is a piece, as JSON, which nobody
-- changes, so no writer waits for another. They are added up into one row per bucket and handler for each step.
create table duetime.series_piece (
    number bigint generated always as identity primary key,
    at bigint not null,
    counts text not null
);

create table duetime.series (
    step integer not null,
    at bigint not null,
    handler text collate "C" not null,
    counts text not null,
    primary key (step, at, handler)
) with (fillfactor = 70);

-- The sample that was kept last, in one row.
create table duetime.sample (
    one integer primary key check (one = 1),
    sample text not null
) with (fillfactor = 50);

-- Failures by kind. Every batch of ended attempts adds what it saw of each kind to the tally, so that nobody waits for
-- another; a duty folds that into what is known of the kind (`facts`, JSON) and into its counts, each of a span of time
-- that begins at `at`.
create table duetime.failure (
    fingerprint text collate "C" primary key,
    handler text collate "C" not null,
    last_at bigint not null,
    facts text not null,
    muted_until_at bigint,
    muted_by text not null default ''
) with (fillfactor = 50);
create index failure_last on duetime.failure (last_at);

create table duetime.failure_count (
    fingerprint text collate "C" not null,
    at bigint not null,
    attempts bigint not null,
    tasks bigint not null,
    primary key (fingerprint, at)
) with (fillfactor = 70);

create table duetime.failure_tally (
    fingerprint text collate "C" not null,
    handler text collate "C" not null,
    at bigint not null,
    attempts bigint not null,
    tasks bigint not null,
    sample uuid not null,
    kind text not null
);
alter table duetime.failure_tally set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);

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

-- Acts on all tasks that match: what was asked for (spec) and how far it is (progress), both JSON. `batch` has the ids
-- that are planned and not acted on yet. `version` counts writes. The row is the lock of its batch (I22).
create table duetime.operation (
    id text collate "C" primary key,
    state text not null,
    version bigint not null,
    started_at bigint not null,
    ended_at bigint,
    spec text not null,
    progress text not null,
    batch text not null
) with (fillfactor = 50);
create index operation_started on duetime.operation (started_at, id);
create index operation_live on duetime.operation (started_at, id) where ended_at is null;
create index operation_ended on duetime.operation (ended_at) where ended_at is not null;

-- What happened, for those who follow it: written by triggers (functions/events.sql), which exist only while somebody
-- does. `subject` is the id of a task or a worker, the name of a schedule, or the handler of a gate. What else there is
-- to tell depends on the name. Numbers rise with what happens to one task; `writer` tells which rows surely have no
-- others before them that are still to come.
create table duetime.event (
    number bigint generated always as identity primary key,
    writer xid8 not null default pg_current_xact_id(),
    at bigint not null,
    name text not null,
    subject text not null,
    handler text,
    collection text,
    attempt integer,
    outcome text,
    worker text,
    schedule text,
    planned_at bigint,
    until_at bigint,
    count bigint,
    note text,
    by text,
    error text
);
create index event_writer on duetime.event (writer, number);

-- Who follows events, until when, and how far it has dealt with them; null: it remembers that itself.
create table duetime.follower (
    name text primary key,
    until_at bigint not null,
    cursor text
) with (fillfactor = 50);

-- Locks that somebody holds, or that rest: `holder` is '' then, and the lock is free at `free_at`, `rest` microseconds
-- after it was given back. `beat` grows as long as its holder lives. Epoch and number are its fence.
create table duetime.lock (
    name text primary key,
    holder text not null,
    epoch bigint not null,
    number bigint not null,
    beat bigint not null,
    by text not null,
    lease double precision not null,
    taken_at bigint not null,
    beat_at bigint not null,
    free_at bigint,
    rest bigint not null default 0
) with (fillfactor = 50);
create sequence duetime.lock_number;

-- Rules of alerts, their states, channels and messages to be submitted, as JSON. `version` is random and new at each
-- change.
create table duetime.alerting (
    kind text not null,
    name text not null,
    version text not null,
    body bytea not null,
    primary key (kind, name)
) with (fillfactor = 70);

-- Servers that are there, so that people and programs find them.
create table duetime.server (
    id text primary key,
    host text not null,
    pid bigint not null,
    url text,
    version text not null,
    python text not null,
    started_at bigint not null,
    beat_at bigint not null
) with (fillfactor = 70);
