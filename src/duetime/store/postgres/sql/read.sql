-- picked_ids: some tasks by id that are not among the finished ones
select p.id from unnest($1::uuid[]) as p (id) where p.id not in (select f.id::uuid from final as f)

-- picked_key: the live task of a key
select t.id from duetime.task as t where t.handler = any (duetime.names($1::text)) and t.key = $2::text
    and not t.queued

-- picked_rows: live tasks that have a row of their own, wherever they stand
select t.id from duetime.task as t left join duetime.due as d on d.id = t.id left join duetime.held as h on h.id = t.id

-- picked_rows_open: the same, where their time in a claim matters
select t.id from duetime.task as t left join duetime.due as d on d.id = t.id left join duetime.held as h on h.id = t.id
left join open as r on r.id = t.id

-- picked_due: tasks that only time holds back
select d.id from duetime.due as d left join lateral (select x.submitted_at from duetime.task as x
    where x.id = d.id offset 0) as t on true

-- picked_due_rows: those of them that have a row of their own
select t.id from duetime.due as d join duetime.task as t on t.id = d.id

-- picked_retrying: waiting tasks that were tried before
select t.id from (
    select x.id, x.due_at, x.tries from duetime.due as x where x.tries > 0
    union all
    select x.id, x.due_at, x.tries from duetime.held as x where x.tries > 0
) as d join duetime.task as t on t.id = d.id

-- picked_held: tasks that wait for other tasks
select t.id from (select x.* from duetime.held as x where x.reason not in ('declaration', 'limit')) as h
join duetime.task as t on t.id = h.id

-- picked_parked: tasks that wait for a worker whose code they fit
select t.id from (select x.* from duetime.held as x where x.reason in ('declaration', 'limit')) as h
join duetime.task as t on t.id = h.id

-- picked_open: tasks with a live attempt; `offset 0` keeps the planner from walking over all tasks instead of those
select r.id from open as r left join lateral (select x.* from duetime.task as x where x.id = r.id offset 0) as t on true

-- picked_whole: tasks with a live attempt that have no row of their own, of claims that can have some for this page:
-- one that is older than a whole page of others is not on it. The index of claims has those of workers only.
select r.id from (
    select x.* from duetime.open_task as x where x.worker = '' and x.submitted_at is not null
    union all
    select x.* from duetime.open_task as x where x.worker <> '' and x.submitted_at is not null
    and x.last_id >= coalesce((select f.id from firsts as f order by f.id desc offset $limit - 1 limit 1),
        '00000000-0000-0000-0000-000000000000')
) as r

-- open: all attempts that have not ended
open as materialized (
    select r.* from duetime.open_task as r
)

-- firsts: the first page of tasks that have a row of their own, and of those that wait for their time; a task may be
-- among both
firsts as materialized (
    select p.id from (
        $kinds
    ) as p group by p.id order by p.id desc limit $limit
)

-- either: the first page of tasks that are in one of two locations
select p.id from (
    $kinds
) as p order by p.id desc limit $limit

-- anywhere: the first page of these and of all others
select p.id from (
    (select f.id from firsts as f)
    union all
    ($whole)
) as p group by p.id order by p.id desc limit $limit

-- live: what the picked tasks are, and where. Rows are looked up one by one, because a join could be planned as a walk
-- over all tasks.
located as materialized (
    select x.* from duetime.locate(array(select p.id from picked as p)) as x
), live as materialized (
    select p.id, t.id is not null as has_row, t.lane, t.key, t.payload, t.due_at, t.submitted_at, t.submitted_by,
        t.expires_at, t.timeout, t.retry, t.extras, t.schedule, t.planned_at
    from picked as p left join lateral (select x.* from duetime.task as x where x.id = p.id offset 0) as t on true
)

-- live_records: the columns of a record, of tasks that live. Of those that ran before, the last error is told. One that
-- is just moving counts as pending.
select v.id::text, l.handler, l.collection, l.priority, coalesce(w.payload, v.payload) as payload,
    coalesce(v.submitted_at, w.submitted_at) as submitted_at, coalesce(v.submitted_by, w.submitted_by) as submitted_by,
    v.key, v.expires_at, v.timeout, v.retry, v.extras, v.schedule, v.planned_at,
    case when w.location in ('claim', 'accepted') then 'running' when w.location = 'held' then 'blocked'
        else 'pending' end as state,
    coalesce(w.due_at, v.due_at) as due_at, coalesce(w.attempt, 0) as attempt, coalesce(w.tries, 0) as tries,
    coalesce(w.crashes, 0) as crashes, coalesce(w.cancelling, false) as cancelling, w.worker,
    case when w.location in ('claim', 'accepted') then greatest(w.claimed_at, w.due_at) end as started_at,
    null::bigint as finished_at, null::text as result,
    case when w.attempt > case when w.location in ('claim', 'accepted') then 1 else 0 end then (
        select a.error from duetime.attempt as a
        where a.task = v.id and a.finished_at >= v.submitted_at - 86400000000
        order by a.attempt desc limit 1
    ) end as error, p.fraction as progress, p.text as progress_text, w.location = 'parked' as parked,
    case when w.location = 'accepted' then (select x.report_at from duetime.accepted as x where x.id = v.id) end
        as deadline_at
from live as v left join located as w on w.id = v.id join duetime.lane as l on l.id = coalesce(v.lane, w.lane)
left join duetime.progress as p on w.location in ('claim', 'accepted') and p.id = w.id and p.attempt = w.attempt
where v.has_row or w.whole

-- final_records: the same columns, of finished tasks
select t.id::text, t.handler, l.collection, l.priority, t.payload, t.submitted_at, t.submitted_by, t.key, t.expires_at,
    t.timeout, t.retry, t.extras, t.schedule, t.planned_at, t.state, t.due_at, t.attempt, t.tries, t.crashes,
    false as cancelling, t.worker, t.started_at, t.finished_at, t.result, t.error, null::double precision as progress,
    null::text as progress_text, false as parked, null::bigint as deadline_at

-- final_by_id: finished tasks by id, in the tables that can hold them
from duetime.history as t join duetime.lane as l on l.id = t.lane where t.id = any ($1::uuid[])
    and t.finished_at >= $2::bigint

-- final_by_key: the task of a key that finished last, unless one lives
from duetime.history as t join duetime.lane as l on l.id = t.lane where t.handler = any (duetime.names($1::text))
and t.key = $2::text and not exists (select from picked) order by t.finished_at desc, t.id desc limit 1

-- final_all: all finished tasks
from duetime.history as t join duetime.lane as l on l.id = t.lane

-- final_succeeded: one final state has tables of its own; naming them lets the newest be read first and the others not
-- at all
from duetime.history_succeeded as t join duetime.lane as l on l.id = t.lane

-- final_failed: the same
from duetime.history_failed as t join duetime.lane as l on l.id = t.lane

-- final_cancelled: the same
from duetime.history_cancelled as t join duetime.lane as l on l.id = t.lane

-- final_dropped: the same
from duetime.history_dropped as t join duetime.lane as l on l.id = t.lane

-- final_expired: the same
from duetime.history_expired as t join duetime.lane as l on l.id = t.lane

-- lanes_of: the lanes of a handler, of a collection, of some names of handlers, of a range of priorities, or of all
-- that are given
select id from duetime.lane where ($1::text is null or handler = any (duetime.names($1::text)))
    and ($2::text is null or collection = $2::text) and ($3::text[] is null or handler = any ($3::text[]))
    and priority >= coalesce($4::integer, 0) and priority <= coalesce($5::integer, 9)

-- handlers_of: all handlers that have or had tasks, or the names of one
select distinct handler from duetime.lane where $1::text is null or handler = any (duetime.names($1::text))

-- only_handlers: tasks of some handlers, told by name, because keys are indexed by it
t.handler = any ($value::text[])

-- only_lanes: tasks of some lanes
$lane = any ($value::integer[])

-- only_key: one key
t.key = $value::text

-- only_schedule: one schedule
t.schedule = $value::text

-- only_submitted_after: submitted at or after an instant
$submitted >= $value::bigint

-- only_submitted_before: submitted before an instant
$submitted < $value::bigint

-- only_ids_before: the same told by ids, so that a walk along them begins there. It holds for all of them, and for some
-- others.
$id <= (select duetime.last_id_before($value::bigint))

-- only_ids_from: tasks whose ids lie in a range: where it begins
$id >= $value::uuid

-- only_ids_to: where it ends
$id <= $value::uuid

-- only_retrying: waiting for another try
$tries > 0

-- only_untried: anything else
$tries = 0

-- only_unparked: not waiting for a worker whose code they fit
not exists (select from duetime.held as k where k.id = $id and k.reason in ('declaration', 'limit'))

-- only_place_due_after: of live tasks: due at or after an instant
$due >= $value::bigint

-- only_place_due_before: of live tasks: due before an instant
$due < $value::bigint

-- only_due_after: of finished tasks: due at or after an instant
t.due_at >= $value::bigint

-- only_due_before: of finished tasks: due before an instant
t.due_at < $value::bigint

-- only_finished_after: finished at or after an instant
t.finished_at >= $value::bigint

-- only_finished_before: finished before an instant
t.finished_at < $value::bigint

-- only_with_error: tasks that ended with an error
t.error is not null

-- only_fingerprint: one kind of failure; tables of other states need not be opened
t.state in ('failed', 'cancelled') and t.fingerprint = $value::text

-- beyond_id: where a page by submission continues
$id < $value::uuid

-- beyond_instant: where a page by end continues, for choosing tables
t.finished_at <= $value::bigint

-- beyond_finished: where a page by end continues
(t.finished_at, t.id) < ($instant::bigint, $value::uuid)

-- any_live: whether these lanes have live tasks at all, known without looking for them
(select sum(y.n) from duetime.tally as y where y.lane = any ($value::integer[]) and y.state = 'live') > 0

-- any_final: whether these lanes have finished tasks at all; a walk for nothing would pass millions of others
(select sum(y.n) from duetime.tally as y where y.lane = any ($value::integer[]) and y.state <> 'live') > 0

-- by_id: newest submitted first. The limit is written into the text: of one that it does not know the server expects a
-- tenth of the table, takes the plan for too dear to be kept, and makes another one for every page.
order by $id desc limit $limit

-- merged_by_id: the same, where ids are text already
order by t.id collate "C" desc limit $limit

-- by_finish: latest finished first
order by t.finished_at desc, t.id desc limit $limit

-- merged_by_finish: the same, of several final states, where ids are text already
order by t.finished_at desc, t.id collate "C" desc limit $limit

-- count_matches: how many tasks match, up to a limit
select count(*) from (select m.id from (
    $matches
) as m limit $limit) as c

-- picked_all_whole: tasks with a live attempt that have no row of their own
select r.id from (select x.* from duetime.open_task as x where x.submitted_at is not null) as r

-- brief_page: a page without results, with the beginnings of payloads, as far as the bytes of errors allow
select b.* from (
    select s.*, sum(s.bytes) over (order by s.number rows between unbounded preceding and 1 preceding) as before
    from (
        select p.id, p.handler, p.collection, p.priority, left(p.payload, $brief) as payload, p.submitted_at,
            p.submitted_by, p.key, p.expires_at, p.timeout, p.retry, p.extras, p.schedule, p.planned_at, p.state,
            p.due_at, p.attempt, p.tries, p.crashes, p.cancelling, p.worker, p.started_at, p.finished_at,
            null::text as result, p.error, p.progress, p.progress_text, p.parked, p.deadline_at,
            coalesce(octet_length(p.error), 0) as bytes, row_number() over () as number
        from (
            $page
        ) as p
    ) as s
) as b where coalesce(b.before, 0) <= $bytes order by b.number

-- bounded_page: the part of a page that its bytes allow, and the first task that they do not. The server knows the
-- length of a long value without reading it, and sends no value of what is left out.
select b.* from (
    select s.*, sum(s.bytes) over (order by s.number rows between unbounded preceding and 1 preceding) as before
    from (
        select p.*, octet_length(p.payload) + coalesce(octet_length(p.result), 0) + coalesce(octet_length(p.error), 0)
            as bytes, row_number() over () as number
        from (
            $page
        ) as p
    ) as s
) as b where coalesce(b.before, 0) <= $bytes order by b.number

-- attempts_of_task: attempts of a task in order, beyond a number, as far as the bytes of errors and details allow,
-- and the first that they do not
select b.attempt, b.outcome, b.worker, b.started_at, b.finished_at, b.detail, b.error from (
    select s.*, sum(coalesce(octet_length(s.error), 0) + coalesce(octet_length(s.detail), 0))
        over (order by s.attempt rows between unbounded preceding and 1 preceding) as before
    from (
        select a.attempt, a.outcome, a.worker, a.started_at, a.finished_at, a.detail, a.error
        from duetime.attempt as a where a.task = $1::uuid and a.finished_at >= $2::bigint and a.attempt > $3::integer
        union all
        select h.attempt, h.outcome, h.worker, h.started_at, h.finished_at, h.detail, h.error
        from duetime.history as h where h.id = $1::uuid and h.finished_at >= $2::bigint and h.outcome is not null
            and h.attempt > $3::integer
        union all
        select coalesce(c.attempts[p.index], c.attempts[1]), null,
            coalesce(nullif(c.worker, ''), (select x.sender from duetime.accepted as x where x.id = $1::uuid)),
            greatest(c.claimed_at, c.dues[p.index]),
            null, null, null
        from duetime.claim as c cross join lateral (select array_position(c.tasks, $1::uuid) as index) as p
        where $1::uuid = any (c.tasks) and get_bit(c.done, p.index - 1) = 0
            and coalesce(c.attempts[p.index], c.attempts[1]) > $3::integer
        order by 1 limit $4::integer
    ) as s
) as b where coalesce(b.before, 0) <= $5::bigint order by b.attempt

-- attempts_of_worker: all attempts of a worker, by claim
select a.id::text, coalesce(a.attempt, c.attempts[1]), c.number, get_bit(c.cancel, a.index::integer - 1) = 1,
    coalesce(a.tries, c.tries[1]), coalesce(a.crashes, c.crashes[1])
from duetime.claim as c cross join lateral unnest(c.tasks, c.attempts, c.tries, c.crashes) with ordinality as a (id,
    attempt, tries, crashes, index)
where c.worker = $1::text and get_bit(c.done, a.index::integer - 1) <> 1
order by c.number, a.index

-- counts: everything in one look: the time, then lanes with what stands in them, then final states. Only what is due is
-- counted by its entries, from the lane's floor on.
with present as materialized (
    select coalesce($1::bigint, duetime.clock()) as now_at
), sums as materialized (
    select y.lane, y.state, sum(y.n)::bigint as n from duetime.tally as y group by y.lane, y.state
), held as materialized (
    select h.lane, count(*) filter (where h.reason not in ('declaration', 'limit')) as blocked,
        count(*) filter (where h.reason in ('declaration', 'limit')) as parked from duetime.held as h group by h.lane
), running as materialized (
    select x.lane, sum(x.n)::bigint as n, coalesce(sum(x.n) filter (where x.accepted), 0)::bigint as accepted from (
        select c.lanes[1] as lane, c.open as n, c.worker = '' as accepted from duetime.claim as c
        where cardinality(c.lanes) = 1
        union all
        select a.lane, 1, false from duetime.claim as c
        cross join lateral unnest(c.lanes) with ordinality as a (lane, index)
        where cardinality(c.lanes) > 1 and get_bit(c.done, a.index::integer - 1) <> 1
    ) as x group by x.lane
), lanes as materialized (
    select l.handler, l.collection, l.priority, d.n as due, d.oldest, coalesce(h.blocked, 0) as blocked,
        coalesce(h.parked, 0) as parked, coalesce(r.n, 0) as running, coalesce(r.accepted, 0) as accepted, s.n as live
    from sums as s join duetime.lane as l on l.id = s.lane join duetime.lane_floor as f on f.id = l.id
        cross join present as p
    left join held as h on h.lane = l.id left join running as r on r.lane = l.id
    cross join lateral (
        select count(*) as n, min(x.due_at) as oldest from (
            select d.due_at from duetime.due as d
            where d.lane = l.id and d.pos >= f.floor and d.pos <= p.now_at order by d.pos limit $2::integer
        ) as x
    ) as d
    where s.state = 'live' and s.n <> 0
)
select 'now', p.now_at, null::text as handler, null::text, null::smallint, null::bigint, null::bigint, null::bigint,
    null::bigint, null::bigint, null::text, null::bigint, null::bigint
from present as p
union all
select 'lane', null, l.handler, l.collection, l.priority, l.due, l.live - l.due - l.blocked - l.parked - l.running,
    l.blocked, l.running, l.oldest, null, l.parked, l.accepted
from lanes as l
union all
select 'final', sum(s.n)::bigint, l.handler, null, null, null, null, null, null, null, s.state, null, null
from sums as s join duetime.lane as l on l.id = s.lane where s.state <> 'live' group by l.handler, s.state
    having sum(s.n) <> 0

-- all_workers: every registered worker with its number of attempts
select w.id, w.host, w.pid, w.slots, w.started_at, w.beat, w.beat_at, w.seen_gates, coalesce(w.pull_lease, w.lease),
    w.pull_lease is not null, coalesce((select sum(c.open) from duetime.claim as c where c.worker = w.id), 0)::integer,
    w.concurrency, w.draining, w.version, w.python, w.lag
from duetime.worker as w order by w.started_at, w.id

-- running_by_worker: how many attempts each worker has of each handler; of claims there is one per batch
select x.worker, l.handler, sum(x.n)::bigint from (
    select c.worker, c.lanes[1] as lane, c.open as n from duetime.claim as c
        where cardinality(c.lanes) = 1 and c.open > 0 and c.worker <> ''
    union all
    select c.worker, a.lane, 1 from duetime.claim as c
        cross join lateral unnest(c.lanes) with ordinality as a (lane, index)
    where cardinality(c.lanes) > 1 and c.open > 0 and get_bit(c.done, a.index::integer - 1) <> 1
) as x join duetime.lane as l on l.id = x.lane group by x.worker, l.handler

-- handler_load: what of a handler is due, up to a limit: only its own lanes are looked into
with own as materialized (
    select l.id, f.floor from duetime.lane as l join duetime.lane_floor as f on f.id = l.id
        where l.handler = any (duetime.names($2::text))
), waiting as materialized (
    select d.due_at from own as l cross join lateral (
        select d.due_at from duetime.due as d
        where d.lane = l.id and d.pos >= l.floor and d.pos <= coalesce($1::bigint, duetime.clock()) order by d.pos
            limit $3::integer
    ) as d limit $3::integer
)
select count(*), min(w.due_at) from waiting as w

-- upcoming: the tasks of a handler that are due next: only the beginnings of its own lanes are looked into
select d.id::text from duetime.lane as l join duetime.lane_floor as f on f.id = l.id cross join lateral (
    select x.id, x.pos from duetime.due as x where x.lane = l.id and x.pos >= f.floor order by x.pos limit $2::integer
) as d where l.handler = any (duetime.names($1::text)) order by d.pos, d.id limit $2::integer

-- unmet_edges: what a task waits for
select e.parent::text, e.needs from duetime.edge as e where e.child = $1::uuid order by e.parent
