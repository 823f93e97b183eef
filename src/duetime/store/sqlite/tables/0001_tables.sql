-- Tables live in the user's own database under a prefix: in WAL mode a transaction over attached files is not atomic.
-- Instants are microseconds since the epoch.

-- What a claim scans and a gate skips. next_at is never later than the earliest position in `due` (it may be earlier),
-- so a claim looks only into lanes that may have work, however many lanes there are. All lanes with a collection of one
-- handler and priority are a road, and the road has their next_at: where no gate tells them apart a claim walks along
-- the road as if it were one lane. Ids of lanes on roads are below zero: -((road << 20) + number on the road).
create table duetime_lane (
    id integer primary key,
    handler text not null,
    collection text not null,
    priority integer not null,
    next_at integer not null,
    unique (handler, collection, priority)
);
create index duetime_lane_next on duetime_lane (next_at);

create table duetime_road (
    id integer primary key,
    handler text not null,
    priority integer not null,
    lanes integer not null,
    next_at integer not null,
    unique (handler, priority)
);
create index duetime_road_next on duetime_road (next_at);

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
    extras text,
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
    detail text,
    error text
);
create index duetime_task_finished on duetime_task (state, finished_at, seq) where state is not null;
create index duetime_task_expiry on duetime_task (expires_at) where expires_at is not null and state is null;
create index duetime_task_key on duetime_task (key) where key is not null;
create index duetime_task_fingerprint on duetime_task (error ->> 'fingerprint', finished_at, seq)
    where error is not null;

-- The live task of each (handler, key). `queued`: the one that waits behind it and has the key next.
create table duetime_key (
    handler text not null,
    key text not null,
    queued integer not null default 0,
    task integer not null,
    primary key (handler, key, queued)
) without rowid;
create index duetime_key_task on duetime_key (task);

-- Which task opened the window of a throttled key, and until when it lasts. `handler` is its present name.
create table duetime_throttled (
    handler text not null,
    key text not null,
    task text not null,
    until_at integer not null,
    primary key (handler, key)
) without rowid;
create index duetime_throttled_until on duetime_throttled (until_at);

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
create index duetime_due_road on duetime_due (-lane >> 20, pos, task) where lane < 0;

-- Tasks that wait for something other than time, by `reason`: 'blocked' for other tasks, of which `waiting` counts
-- those still missing; 'declaration' for a worker whose code their payload fits (people read: parked), and then
-- `refused` has the digests of all declarations that it was found not to fit; 'suspended' for the end of their `step`:
-- a signal, or tasks that `waiting` counts; 'limit' for others of its partition (parked, too), of which it `takes` so
-- much.
create table duetime_held (
    task integer primary key,
    lane integer not null,
    reason text not null,
    waiting integer not null,
    due_at integer not null,
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
create index duetime_held_parked on duetime_held (lane, refused, task) where reason in ('declaration', 'limit');
create index duetime_held_parked_task on duetime_held (task) where reason in ('declaration', 'limit');
create index duetime_held_limit on duetime_held (limit_name, part, priority desc, due_at, task) where reason = 'limit';

-- Which declarations, by digest, a task was found not to fit; kept while it is tried elsewhere. Rows of tasks that have
-- ended are removed from time to time.
create table duetime_refusal (
    task integer not null,
    digest text not null,
    primary key (task, digest)
) without rowid;

-- Steps: parts of a task's work that are saved, and waits; `kind` and the rest as in `model.steps`. `woken`: whoever
-- ended the wait has looked whether the task goes on. Kept as long as the task.
create table duetime_step (
    number integer primary key,
    task integer not null,
    name text not null,
    kind text not null,
    attempt integer not null,
    at integer not null,
    done integer not null,
    late integer not null default 0,
    woken integer not null default 1,
    data text,
    signal text,
    wake_at integer,
    children text,
    unique (task, name)
);
create index duetime_step_waiting on duetime_step (signal, number) where done = 0 and signal is not null;
create index duetime_step_wake on duetime_step (wake_at) where done = 0 and signal is not null and wake_at is not null;
create index duetime_step_call on duetime_step (number) where done = 0 and children is not null;
create index duetime_step_asleep on duetime_step (number) where woken = 0;

-- Signals that are kept for who waits for their name; `task` has got it. `looked`: whoever sent it has looked whether
-- somebody waits.
create table duetime_signal (
    number integer primary key,
    name text not null,
    id text not null,
    data text not null,
    sent_at integer not null,
    sent_by text not null,
    keep_until integer not null,
    task text,
    looked integer not null,
    unique (name, id)
);
create index duetime_signal_free on duetime_signal (name, number) where task is null;
create index duetime_signal_unseen on duetime_signal (number) where looked = 0;
create index duetime_signal_kept on duetime_signal (keep_until);

-- A child waits for its parent to end.
create table duetime_edge (
    parent integer not null,
    child integer not null,
    needs text not null,
    primary key (parent, child)
) without rowid;
create index duetime_edge_child on duetime_edge (child);

-- What a child waited for that was cancelled because a parent did not succeed. It waits for them again when that parent
-- is retried. Both are stored as long as this is.
create table duetime_vain (
    child integer not null,
    parent integer not null,
    needs text not null,
    primary key (child, parent)
) without rowid;
create index duetime_vain_parent on duetime_vain (parent);

-- A flow: a graph of nodes, each of which is one task or a group of tasks. `graph` is JSON. `stopping`: why nothing
-- more of it starts; `swept`: what was under way then has been told to end. `more`: some of its tasks are still to be
-- made. `version` counts changes. `holds_key`: it lives, or lived last, under its key.
create table duetime_flow (
    id text primary key,
    name text not null,
    state text not null,
    version integer not null default 1,
    stopping text,
    swept integer not null default 0,
    more integer not null default 0,
    graph text not null,
    submitted_at integer not null,
    submitted_by text not null,
    deadline_at integer,
    finished_at integer,
    meta text,
    key text,
    holds_key integer not null default 0
) without rowid;
create unique index duetime_flow_key on duetime_flow (name, key) where holds_key;
create index duetime_flow_state on duetime_flow (state, id);
create index duetime_flow_busy on duetime_flow (id) where more or (stopping is not null and not swept);
create index duetime_flow_deadline on duetime_flow (deadline_at)
    where deadline_at is not null and state = 'running' and stopping is null;
create index duetime_flow_finished on duetime_flow (finished_at) where finished_at is not null;

-- What is known of the nodes of a flow, by their number in its graph: of how many members the tasks were made, how many
-- of those have ended and failed. `error`: they could not be made. `round` counts reruns. `members`: how many a map
-- has.
create table duetime_node (
    flow text not null,
    number integer not null,
    round integer not null default 1,
    opened integer not null default 0,
    ended integer not null default 0,
    failed integer not null default 0,
    error text not null default '',
    members integer,
    primary key (flow, number)
) without rowid;

-- The tasks of a node that are to be submitted when it is free, a thousand in each row.
create table duetime_draft (
    flow text not null,
    node integer not null,
    first integer not null,
    tasks text not null,
    primary key (flow, node, first)
) without rowid;

-- Which tasks belong to flows. `keeps`: its result is kept for those that read it.
create table duetime_member (
    task integer primary key,
    flow text not null,
    node integer not null,
    round integer not null,
    position integer not null,
    keeps integer not null
);
create index duetime_member_node on duetime_member (flow, node, round, position);

-- Members that have ended, or live again (below zero), and are not counted in their node yet.
create table duetime_arrival (
    seq integer primary key,
    flow text not null,
    node integer not null,
    round integer not null,
    ended integer not null,
    failed integer not null
);
create index duetime_arrival_flow on duetime_arrival (flow);

-- What members returned that somebody reads.
create table duetime_value (
    flow text not null,
    node integer not null,
    round integer not null,
    position integer not null,
    data text not null,
    items integer,
    primary key (flow, node, round, position)
) without rowid;

-- What a member's attempt has yielded that somebody reads: `items` of a JSON list from `first` on. Those of the attempt
-- that succeeded stay as long as the flow; a value with `items` stands for them.
create table duetime_piece (
    flow text not null,
    node integer not null,
    round integer not null,
    position integer not null,
    first integer not null,
    items integer not null,
    attempt integer not null,
    data text not null,
    primary key (flow, node, round, position, first)
) without rowid;

-- Claimed attempts, and accepted ones.
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

-- Attempts whose work somebody outside has accepted: they stand in running without a worker (''), and `sender` is the
-- one that handed the work over. They time out at `report_at`: `deadline_at`, or earlier after `silence` microseconds
-- without a report. `location`: where the work can be withdrawn; `withdrawing`: it was told to stop, and nobody has
-- told that location yet.
create table duetime_accepted (
    task integer primary key,
    sender text not null,
    deadline_at integer not null,
    silence integer,
    report_at integer not null,
    location text,
    withdrawing integer not null default 0
);
create index duetime_accepted_report on duetime_accepted (report_at);
create index duetime_accepted_withdrawing on duetime_accepted (task) where withdrawing = 1;

-- Where live tasks are: every location. Whether a task lives is told by its own row (`state is null`), which
-- repeats, keys, edges and orphan checks ask; this view is for those who need to know where it is.
create view duetime_location as
select task, 'due' as location, lane from duetime_due
union all
select task, 'held', lane from duetime_held
union all
select task, iif(worker = '', 'accepted', 'running'), lane from duetime_running;

-- Ended attempts that were not the task's last; the last one stands in the task's own row. Of many the first and the
-- last are kept.
create table duetime_attempt (
    task integer not null,
    attempt integer not null,
    outcome text not null,
    worker text,
    started_at integer,
    finished_at integer not null,
    detail text,
    error text,
    primary key (task, attempt)
) without rowid;

-- The lock on its file shows whether a worker lives; its beat and confirmed gates are in that file too, so that
-- neither needs the database's write lock. Pull workers are reached through a server: no
-- process of theirs holds a lock here, so their beats are in their rows. `lease` is how many seconds a pull worker
-- counts as alive without a beat; null: not a pull worker. `declared`: the digest of its declaration of each handler.
-- `concurrency`: its slots over all handlers; null: the sum of theirs. `draining`: it may claim nothing. `lost_at` is
-- set in the step that takes a dead one away, for those who are told of it.
create table duetime_worker (
    id text primary key,
    host text not null,
    pid integer not null,
    slots text not null,
    concurrency integer,
    started_at integer not null,
    process text not null,
    lease real,
    beat integer not null default 0,
    beat_at integer,
    declared text not null default '{}',
    draining integer not null default 0,
    version text,
    python text,
    lag real not null default 0,
    lost_at integer
) without rowid;

-- Limits of the whole fleet: what code declares and what an operator has set instead. `uses`: what an attempt of each
-- handler takes, as JSON.
create table duetime_limit (
    name text primary key,
    declared integer not null,
    uses text not null,
    version integer not null default 1,
    own integer,
    until_at integer,
    note text not null default '',
    set_by text not null default '',
    set_at integer,
    by text,
    rates text not null default '[]',
    own_rates text,
    over text not null default 'wait'
) without rowid;

-- What workers have of them. `number` is that of the worker's last call, `seen` the version that it goes by, `since`
-- when an attempt of it has waited for long that cannot begin (model.limit.yields).
create table duetime_permit (
    name text not null,
    worker text not null,
    permits integer not null,
    wanted integer not null,
    seen integer not null,
    number integer not null,
    since integer,
    primary key (name, worker)
) without rowid;
create index duetime_permit_worker on duetime_permit (worker);

-- Attempts that a counted limit has admitted (model/partitions.py): what each takes of which partition. `attempt` null:
-- it may go on, not before `at`, and nobody has claimed it yet. A row counts as long as its attempt is open.
create table duetime_admitted (
    task integer not null,
    name text not null,
    part text not null,
    takes integer not null,
    attempt integer,
    at integer not null,
    primary key (task, name)
) without rowid;
create index duetime_admitted_part on duetime_admitted (name, part);

-- Numbers that an operator has set for single partitions.
create table duetime_partition (
    name text not null,
    part text not null,
    own integer not null,
    until_at integer,
    note text not null,
    set_by text not null,
    set_at integer not null,
    primary key (name, part)
) without rowid;

-- What is spent of the rates of partitions, by the number of the rate; rows of the past are deleted.
create table duetime_spent (
    name text not null,
    part text not null,
    rate integer not null,
    at integer not null,
    used integer not null,
    primary key (name, part, rate)
) without rowid;
create index duetime_spent_at on duetime_spent (at);

create table duetime_gate (
    handler text not null,
    collection text not null,
    action text not null,
    until_at integer,
    note text not null,
    set_by text not null,
    set_at integer not null,
    automatic integer not null default 0,
    probe_at integer,
    probe_every real,
    primary key (handler, collection)
) without rowid;

-- Handlers whose collections share its starts, under their present names: because code says so (`declared`), or by
-- weights that somebody has set, a JSON object by collection. `gates_version` counts changes of these too.
create table duetime_fairness (
    handler text primary key,
    declared integer not null default 0,
    weights text not null default '{}',
    note text not null default '',
    set_by text not null default '',
    set_at integer
) without rowid;

-- Until when submissions have used up the quotas of handlers, under their present names.
create table duetime_quota (
    handler text primary key,
    used_until integer not null
) without rowid;

-- Failures in a row of handlers that are to be disabled after some; a success ends one.
create table duetime_streak (
    handler text not null,
    collection text not null,
    failures integer not null,
    since_at integer not null,
    last text not null,
    primary key (handler, collection)
) without rowid;

-- What processes declared, by name and digest; of a name the one with the highest number is the present one.
create table duetime_handler (
    number integer primary key,
    name text not null,
    digest text not null,
    declaration text not null,
    unique (name, digest)
);

-- Other names of handlers, as their present declarations say.
create table duetime_alias (
    alias text primary key,
    name text not null
) without rowid;

-- Single facts: gates_version, targets_version; and two that tell lists by the time of submitting where to begin.
-- Tasks are numbered in the order of submitting, and `submitted_at` rises with the number unless the clock was set
-- back. Of two tasks the one with the lower number was submitted at submitted_high or before, or not after the other;
-- and never by more than submitted_back after it.
create table duetime_fact (
    name text primary key,
    value integer not null
) without rowid;
insert into duetime_fact values ('gates_version', 0), ('targets_version', 0),
    ('submitted_high', 0), ('submitted_back', 0), ('epoch', 0), ('lock_number', 0);

-- A schedule: what people asked for (spec) and what firing made of it (state), both JSON. What is searched by stands
-- in columns of its own. `version` counts writes and is the fence of firing. `waits`: the end of a run makes it due.
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

-- Tokens. Of a secret only its digest is kept; the one before the last rotation is good until `old_until_at`. Scopes,
-- handlers and addresses are JSON. A removed token is gone; the audit remembers it.
create table duetime_token (
    id text primary key,
    name text not null unique,
    version integer not null,
    scopes text not null,
    handlers text not null,
    digest text not null,
    old_digest text,
    old_until_at integer,
    rate real,
    note text not null,
    created_at integer not null,
    created_by text not null,
    rotated_at integer,
    expires_at integer,
    owner text not null,
    addresses text not null,
    last_used_at integer
) without rowid;

-- People who are signed in to the dashboard. Of what their browser keeps only a digest is stored, and with which secret
-- of which token they signed in: when that is good no more, the session is over.
create table duetime_session (
    digest text primary key,
    token text not null,
    token_digest text not null,
    origin text not null,
    created_at integer not null,
    idle_at integer not null,
    expires_at integer not null
) without rowid;

-- What operators did: who, what, on what, when, from where, and how it ended. Nothing here refers to other tables,
-- so it outlives all.
create table duetime_audit (
    id text primary key,
    at integer not null,
    by text not null,
    token text,
    action text not null,
    subject text not null,
    origin text not null,
    outcome text not null,
    detail text not null
) without rowid;
create index duetime_audit_at on duetime_audit (at, id);
create index duetime_audit_by on duetime_audit (by, at, id);
create index duetime_audit_subject on duetime_audit (subject, at, id);

-- Secrets, sealed: `key` names the key that opens `sealed`, which is bound to its name and version. Former versions are
-- good until `until_at`.
create table duetime_secret (
    name text not null,
    version integer not null,
    key text not null,
    sealed text not null,
    created_at integer not null,
    created_by text not null,
    until_at integer,
    primary key (name, version)
) without rowid;

-- Versions of artifacts; their bytes are elsewhere, by their hash. `run` is JSON. A version that was removed keeps its
-- row, so that its number is never used again.
create table duetime_artifact (
    name text not null,
    sha256 text not null,
    size integer not null,
    file text not null,
    run text not null,
    note text not null,
    made_at integer not null,
    made_by text not null,
    version integer not null,
    kind text not null,
    removed integer not null default 0,
    primary key (name, version)
) without rowid;
create index duetime_artifact_sha256 on duetime_artifact (sha256) where not removed;

-- Artifacts that are being uploaded; `version` is what an upload has become. `signature` is the digest of what its
-- address has to prove.
create table duetime_upload (
    id text primary key,
    name text not null,
    sha256 text not null,
    size integer not null,
    file text not null,
    run text not null,
    note text not null,
    made_at integer not null,
    made_by text not null,
    unpack integer not null,
    signature text not null,
    expires_at integer not null,
    version integer
) without rowid;
create index duetime_upload_expires_at on duetime_upload (expires_at, id);

-- Targets that are stored under a handler's name: how its attempts are performed, as JSON. `version` is what
-- `targets_version` was made by this change. Code that declares a handler of that name has its target `shadowed`.
-- `digest` is that of the declaration that came with it.
create table duetime_target (
    name text primary key,
    kind text not null,
    definition text not null,
    version integer not null,
    changed_at integer not null,
    changed_by text not null,
    shadowed integer not null,
    digest text not null
) without rowid;

-- What workers count: each process adds to rows of its own, and a sum over all of them only grows. `number` is that
-- of its last write, so that a repeat is known. Rows of processes that have been silent for long are added up under
-- the source ''.
create table duetime_figure_source (
    source text primary key,
    number integer not null,
    written_at integer not null
) without rowid;

create table duetime_figure (
    source text not null,
    name text not null,
    handler text not null,
    part text not null,
    count integer not null,
    primary key (source, name, handler, part)
) without rowid;

-- What happened when (see model/series.py). Each write of figures and each sample is a piece, as JSON. They are added
-- up into one row per bucket and handler for each step.
create table duetime_series_piece (
    number integer primary key autoincrement,
    at integer not null,
    counts text not null
);

create table duetime_series (
    step integer not null,
    at integer not null,
    handler text not null,
    counts text not null,
    primary key (step, at, handler)
) without rowid;

-- The sample that was kept last, in one row.
create table duetime_sample (
    one integer primary key check (one = 1),
    sample text not null
);

-- Failures by kind. Every batch of ended attempts adds what it saw of each kind to the tally; a duty folds that into
-- what is known of the kind (`facts`, JSON) and into its counts, each of a span of time that begins at `at`.
create table duetime_failure (
    fingerprint text primary key,
    handler text not null,
    last_at integer not null,
    facts text not null,
    muted_until_at integer,
    muted_by text not null default ''
) without rowid;
create index duetime_failure_last on duetime_failure (last_at);

create table duetime_failure_count (
    fingerprint text not null,
    at integer not null,
    attempts integer not null,
    tasks integer not null,
    primary key (fingerprint, at)
) without rowid;

create table duetime_failure_tally (
    number integer primary key,
    fingerprint text not null,
    handler text not null,
    at integer not null,
    attempts integer not null,
    tasks integer not null,
    sample text not null,
    kind text not null
);

-- What attempts printed and logged: one row per attempt that has output, with how much of it is kept and whether no
-- more will come.
create table duetime_output (
    number integer primary key,
    task integer not null,
    attempt integer not null,
    size integer not null,
    whole integer not null,
    kept_at integer not null,
    unique (task, attempt)
);

-- Its text in pieces; `start` and `size` are bytes of UTF-8. Numbers are never used twice, because the index of
-- words, which is made where SQLite has FTS5, may know of pieces that a process without it has removed.
create table duetime_output_chunk (
    id integer primary key autoincrement,
    output integer not null,
    start integer not null,
    size integer not null,
    text text not null,
    unique (output, start)
);

-- Requests that their callers have named (Idempotency-Key): written before the task that they ask for, with the id
-- that it gets.
create table duetime_request (
    caller text not null,
    key text not null,
    digest text not null,
    task text not null,
    met integer not null default 0,  -- the task was there already, and its key was kept or replaced
    at integer not null,
    primary key (caller, key)
) without rowid;
create index duetime_request_at on duetime_request (at);

-- What callers' transactions ask for, until it is carried out after the commit. A row without `edits` is a cancel.
create table duetime_intent (
    number integer primary key,
    task text not null,
    edits integer not null,
    due_at integer,
    priority integer,
    collection text,
    payload blob
);
create index duetime_intent_task on duetime_intent (task);

-- Acts on all tasks that match: what was asked for (spec) and how far it is (progress), both JSON. `batch` has the ids
-- that are planned and not acted on yet. `version` counts writes.
create table duetime_operation (
    id text primary key,
    state text not null,
    version integer not null,
    started_at integer not null,
    ended_at integer,
    spec text not null,
    progress text not null,
    batch text not null
) without rowid;
create index duetime_operation_started on duetime_operation (started_at, id);
create index duetime_operation_live on duetime_operation (started_at, id) where ended_at is null;
create index duetime_operation_ended on duetime_operation (ended_at) where ended_at is not null;

-- What happened, for those who follow it: written by triggers (sql/events.sql), which exist only while somebody does.
-- `subject` is the id of a task or a worker, the name of a schedule, or the handler of a gate. What else there is to
-- tell depends on the name.
create table duetime_event (
    number integer primary key autoincrement,
    at integer not null,
    name text not null,
    subject text not null,
    handler text,
    collection text,
    attempt integer,
    outcome text,
    worker text,
    schedule text,
    planned_at integer,
    until_at integer,
    count integer,
    note text,
    by text,
    error text
);

-- Who follows events, until when, and up to which number it has dealt with them; null: it remembers that itself.
create table duetime_follower (
    name text primary key,
    until_at integer not null,
    cursor text
) without rowid;

-- Locks that somebody holds, or that rest: `holder` is '' then, and the lock is free at `free_at`, `rest` microseconds
-- after it was given back. `beat` grows as long as its holder lives. Epoch and number are its fence.
create table duetime_lock (
    name text primary key,
    holder text not null,
    epoch integer not null,
    number integer not null,
    beat integer not null,
    by text not null,
    lease real not null,
    taken_at integer not null,
    beat_at integer not null,
    free_at integer,
    rest integer not null default 0
) without rowid;

-- Rules of alerts, their states, channels and messages to be submitted, as JSON. `version` is random and new at each
-- change.
create table duetime_alerting (
    kind text not null,
    name text not null,
    version text not null,
    body blob not null,
    primary key (kind, name)
) without rowid;

-- Servers that are there, so that people and programs find them.
create table duetime_server (
    id text primary key,
    host text not null,
    pid integer not null,
    url text,
    version text not null,
    python text not null,
    started_at integer not null,
    beat_at integer not null
) without rowid;
