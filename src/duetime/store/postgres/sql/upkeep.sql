-- make_partitions: the tables that will hold what finishes in some spans of time
select duetime.make_partition(p.parent, p.from_at, p.to_at) from unnest($1::text[], $2::bigint[],
    $3::bigint[]) as p (parent, from_at, to_at)

-- partitions: the tables that hold what finished, by parent and time; one without bounds was detached and waits to be
-- dropped
select p.parent, c.relname, i.inhdetachpending, b.bounds[1]::bigint, b.bounds[2]::bigint
from unnest($1::text[]) as p (parent)
join pg_class as c on c.relkind = 'r' and c.relname ~ ('^' || p.parent || '_[0-9]{8,}$')
    and c.relnamespace = to_regnamespace(quote_ident('duetime'))
left join pg_inherits as i on i.inhrelid = c.oid
left join lateral (select regexp_match(pg_get_expr(c.relpartbound, c.oid),
    'FROM [(]''?(-?[0-9]+)''?[)] TO [(]''?(-?[0-9]+)''?[)]') as bounds) as b on true
order by p.parent, b.bounds[1]::bigint

-- count_some: how many rows a table has, up to a bound
select count(*) from (select from duetime.%partition limit $1::integer) as x

-- detach: take a table out of its parent; others go on reading and writing meanwhile
alter table duetime.%parent detach partition duetime.%partition concurrently

-- finish_detach: the same, where that was interrupted
alter table duetime.%parent detach partition duetime.%partition finalize

-- lock_partition: a detached table, so that nobody attaches it again
lock table duetime.%partition in access exclusive mode

-- uncount: the tasks of a table that goes are counted no more
insert into duetime.tally (lane, state, n) select lane, state, -count(*) from duetime.%partition
where handler <> all ($1::text[]) group by lane, state

-- any_of: whether a table has tasks of some handlers
select exists (select from duetime.%partition as p where p.handler = any ($1::text[]))

-- make_kept: the table for tasks that outlive the others of their state, and that for their attempts
select duetime.make_kept('%parent'), duetime.make_kept('attempt')

-- set_aside: tasks that outlive their table, with their attempts (I21). Who waits for such a row is told that it has
-- moved, and tries again; a row that is deleted and inserted would be gone for them.
with moved as (
    update duetime.%parent as h set kept = true
    where h.id = any ($1::uuid[]) and h.finished_at < $2::bigint and not h.kept returning h.id
)
update duetime.attempt as a set kept = true where a.task = any (array(select m.id from moved as m)) and not a.kept

-- rescue: the same, of tasks that were written after that, from a table that is out already and goes now (I21)
with moved as (
    insert into duetime.history (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at,
        timeout, retry, extras, schedule, planned_at, state, outcome, attempt, tries, crashes, worker, started_at,
        finished_at, result, error, detail, fingerprint, kept)
    select p.id, p.lane, p.handler, p.key, p.payload, p.due_at, p.submitted_at, p.submitted_by, p.expires_at,
        p.timeout, p.retry, p.extras, p.schedule, p.planned_at, p.state, p.outcome, p.attempt, p.tries, p.crashes,
        p.worker, p.started_at, p.finished_at, p.result, p.error, p.detail, p.fingerprint, true
    from duetime.%partition as p where p.handler = any ($1::text[]) returning id
)
update duetime.attempt as a set kept = true where a.task = any (array(select m.id from moved as m)) and not a.kept

-- forget_kept_attempts: of tasks in a table that goes. They were set aside, and an operator retried them.
delete from duetime.attempt as a using duetime.%partition as p
where a.kept and a.task = p.id and p.handler <> all ($1::text[])

-- drop_partition: a table whose time is over
drop table duetime.%partition

-- has_live: whether a table of attempts tells of tasks that live
select exists (select from duetime.%partition as a join duetime.task as t on t.id = a.task)

-- old_before: finished tasks past their retention, the oldest first
with old as materialized (
    select h.id, h.finished_at from duetime.%parent as h where h.finished_at >= $1::bigint
        and h.finished_at < $2::bigint
    order by h.finished_at, h.id limit $3::integer for update skip locked
)

-- old_among: which of some tasks are that
with old as materialized (
    select h.id, h.finished_at from duetime.%parent as h where h.id = any ($1::uuid[]) and h.finished_at < $2::bigint
    order by h.finished_at, h.id for update skip locked
)

-- remove_old: these, with their attempts and output
, gone as (
    delete from duetime.%parent as h where h.id = any (array(select o.id from old as o))
    returning h.id, h.lane, h.state, h.attempt, h.finished_at
), told as (
    delete from duetime.attempt as a where a.task = any (array(select g.id from gone as g))
), printed as (
    delete from duetime.output_chunk as c where c.task = any (array(select g.id from gone as g))
), kept as (
    delete from duetime.output as o where o.task = any (array(select g.id from gone as g))
), counted as (
    insert into duetime.tally (lane, state, n) select g.lane, g.state, -count(*) from gone as g group by g.lane, g.state
)
select g.id::text, g.attempt from gone as g order by g.finished_at, g.id

-- walk: the next finished tasks by the time of their end: how many they are, up to a bound, which is the last, and
-- which are of some handlers, or of none of them
with seen as materialized (
    select h.id, h.finished_at, h.handler = any ($5::text[]) as named from duetime.%parent_recent as h
    where (h.finished_at, h.id) > ($1::bigint, $2::uuid) and h.finished_at >= $1::bigint and h.finished_at < $3::bigint
    order by h.finished_at, h.id limit $4::integer
)
select (select count(*) from seen), l.finished_at, l.id::text,
    array(select s.id::text from seen as s where s.named = $6::boolean order by s.finished_at, s.id)
from seen as l order by l.finished_at desc, l.id desc limit 1

-- kept_handlers: whose tasks were set aside; one step from name to name in the index
with recursive name as (
    (select h.handler from duetime.%parent as h where h.kept order by h.handler limit 1)
    union all
    select (select h.handler from duetime.%parent as h where h.kept and h.handler > n.handler order by h.handler
        limit 1)
    from name as n where n.handler is not null
)
select n.handler from name as n where n.handler is not null

-- old_kept: tasks of some handlers that were set aside and are past their retention, the oldest first
select x.id::text from unnest($1::text[]) as n (handler) cross join lateral (
    select h.id, h.finished_at from duetime.%parent as h
    where h.kept and h.handler = n.handler and h.finished_at < $2::bigint
    order by h.finished_at, h.id limit $3::integer
) as x order by x.finished_at, x.id limit $3::integer

-- surplus: how many rows of the tally could be saved by adding them up
select count(*) - count(distinct (lane, state)) from duetime.tally

-- fold: add up rows of the tally; those that are just being written come next time
with taken as (
    delete from duetime.tally where ctid = any (array(select ctid from duetime.tally limit 100000
        for update skip locked)) returning lane, state, n
)
insert into duetime.tally (lane, state, n) select lane, state, sum(n) from taken group by lane, state having sum(n) <> 0

-- forget_ended_refusals: of tasks that do not live; who was refused has a row
delete from duetime.refusal as r where not exists (select from duetime.task as t where t.id = r.task)

-- forget_windows: of throttled keys, that are over
delete from duetime.throttled where until_at <= coalesce($1::bigint, duetime.clock())

-- forget_vain_of_gone: children that were cancelled in vain and are not kept any more
delete from duetime.vain as v where not exists (select from duetime.history as h
    where h.id = v.child and h.state = 'cancelled' and h.finished_at = v.ended_at)

-- forget_covered: remove what is remembered of ids if another row says it too. Of two that say the same one goes, and
-- for all who do this the same one.
delete from duetime.ahead as a where exists (
    select from duetime.ahead as b where b.lead >= a.lead and b.until >= a.until
        and (b.lead, b.until, b.ctid) > (a.lead, a.until, a.ctid))

-- orphaned: parents that have ended but still have children, and how they ended. One that is gone was finished once;
-- how is not known, so its children are let go.
with parents as materialized (
    select distinct e.parent as id from duetime.edge as e
), living as materialized (
    select x.id from duetime.living(array(select p.id from parents as p)) as x (id)
)
select p.id::text, coalesce((select h.state from duetime.history as h where h.id = p.id limit 1), 'succeeded')
from parents as p where (p.id in (select l.id from living as l)) is not true limit $1::integer

-- follow: let the children of ended tasks go on, or end those in vain
select duetime.follow($1::bigint, $2::uuid[], $3::boolean[])

-- ghost_locations: locations of tasks that do not live
select w.location, w.id::text from duetime.location as w
where not w.whole and not exists (select from duetime.task as t where t.id = w.id)

-- doubled_locations: tasks that are in more than one location
select x.id::text, bool_or(x.location in ('claim', 'accepted')), bool_or(x.location in ('held', 'parked')) from (
    select distinct w.id, w.location from duetime.location as w
) as x group by x.id having count(*) > 1

-- doubled_claims: tasks that run in more than one claim, with all but the newest attempt
select y.id::text, y.worker, y.number from (
    select r.id, r.worker, r.number, row_number() over (partition by r.id order by r.attempt desc,
        r.claimed_at desc) as rank
    from duetime.open_attempt as r
) as y where y.rank > 1

-- two_bodies: tasks that have a row of their own and stand whole in a location as well
select w.location, w.id::text from duetime.location as w join duetime.task as t on t.id = w.id where w.whole

-- write_out: give a task that stands whole in due a row of its own
insert into duetime.task (id, lane, handler, payload, due_at, submitted_at, submitted_by)
select d.id, d.lane, l.handler, d.payload, d.due_at, d.submitted_at, d.submitted_by
from duetime.due as d join duetime.lane as l on l.id = d.lane where d.id = $1::uuid and d.payload is not null
on conflict do nothing

-- empty_due: let a task's row say what it is, and not its entry
update duetime.due as d set payload = null, submitted_at = null, submitted_by = null
where d.id = $1::uuid and exists (select from duetime.task as t where t.id = d.id)

-- forget_row: the other way round for a task that runs, because a claim tells of many
delete from duetime.task as t where t.id = $1::uuid
and exists (select from duetime.open_task as r where r.id = t.id and r.submitted_at is not null)

-- wrong_bounds: claims with an id outside of what is said to be their least and greatest
select c.worker, c.number from duetime.claim as c
where exists (select from unnest(c.tasks) as t (id) where t.id < c.first_id or t.id > c.last_id)

-- set_bounds: put them right
update duetime.claim as c set first_id = (select t.id from unnest(c.tasks) as t (id) order by t.id limit 1),
    last_id = (select t.id from unnest(c.tasks) as t (id) order by t.id desc limit 1)
where c.worker = $1::text and c.number = $2::bigint

-- delete_due: take entries away
delete from duetime.due where id = any ($1::uuid[])

-- delete_held: take held entries away
delete from duetime.held where id = any ($1::uuid[])

-- close_attempts: end a task's attempts, in the claim of one worker and number if they are named
update duetime.claim as c set done = set_bit(c.done, array_position(c.tasks, $1::uuid) - 1, 1), open = c.open - 1
where $1::uuid = any (c.tasks) and get_bit(c.done, array_position(c.tasks, $1::uuid) - 1) <> 1
and ($2::text is null or (c.worker = $2::text and c.number = $3::bigint))

-- twice_told: tasks that live and are finished
select h.id::text, h.state from (
    select t.id from duetime.task as t
    union
    select w.id from duetime.location as w where w.whole
) as t join duetime.history as h on h.id = t.id

-- forget_finals: take tasks out of history that live
with gone as (
    delete from duetime.history as h where h.id in (select x.id from duetime.living($1::uuid[]) as x (id))
    returning h.lane, h.state
)
insert into duetime.tally (lane, state, n) select lane, state, -count(*) from gone group by lane, state

-- wrong_claims: claims whose count of open attempts is not that of their bits
select c.worker, c.number, c.open, length(c.done) - bit_count(c.done) from duetime.claim as c
where c.open <> length(c.done) - bit_count(c.done) or c.open = 0

-- recount_claim: put that count right
update duetime.claim as c set open = length(c.done) - bit_count(c.done) where c.worker = $1::text
    and c.number = $2::bigint

-- delete_ended_claims: claims in which everything has ended
delete from duetime.claim where open = 0 and bit_count(done) = length(done)

-- ownerless_claims: attempts of workers that are not registered
select r.worker, r.id::text from duetime.open_task as r where r.worker <> ''
    and not exists (select from duetime.worker as w where w.id = r.worker)

-- unbounded_attempts: accepted attempts that nothing says the deadline of
select r.id::text from duetime.open_task as r where r.worker = ''
    and not exists (select from duetime.accepted as a where a.id = r.id and a.number = r.number)

-- bound_attempts: let such attempts time out now
insert into duetime.accepted (id, attempt, number, sender, deadline_at, report_at)
select r.id, r.attempt, r.number, '', $1::bigint, $1::bigint from duetime.open_attempt as r
where r.worker = '' and r.id = any ($2::uuid[])
on conflict (id) do update set attempt = excluded.attempt, number = excluded.number, report_at = excluded.report_at

-- stray_deadlines: deadlines of attempts that are not accepted, or gone
select a.id::text from duetime.accepted as a
where not exists (select from duetime.open_task as r where r.worker = '' and r.id = a.id)

-- delete_deadlines: forget them
delete from duetime.accepted as a where a.id = any ($1::uuid[])
    and not exists (select from duetime.open_task as r where r.worker = '' and r.id = a.id)

-- homeless_tasks: live tasks that are in no location
select t.id::text from duetime.task as t where (t.id in (select w.id from duetime.location as w)) is not true

-- house_task: put tasks that are in no location where they wait for their time
insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes)
select t.lane, greatest(t.due_at, $1::bigint), t.id, t.due_at, t.expires_at,
    coalesce((select max(a.attempt) from duetime.attempt as a where a.task = t.id), 0), 0, 0
from duetime.task as t where t.id = any ($2::uuid[])
and (t.id in (select w.id from duetime.locate($2::uuid[]) as w)) is not true
on conflict do nothing

-- wrong_waiting: held tasks whose count does not fit their edges
select h.id::text, h.waiting, e.n from duetime.held as h
cross join lateral (select count(*) as n from duetime.edge as e where e.child = h.id) as e
where h.reason = 'blocked' and (h.waiting <> e.n or h.waiting = 0)

-- set_waiting: put the count of held tasks right
update duetime.held as h set waiting = (select count(*) from duetime.edge as e where e.child = h.id)
    where h.id = any ($1::uuid[])

-- free_held: let held tasks go on that wait for nothing
with freed as (
    delete from duetime.held where id = any ($2::uuid[]) and waiting = 0 and reason = 'blocked' returning *
)
insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes)
select lane, greatest(due_at, $1::bigint), id, due_at, expires_at, attempt, tries, crashes from freed

-- stray_entries: waiting tasks that are in another lane than their own
select w.id::text from duetime.location as w join duetime.task as t on t.id = w.id
where w.location not in ('claim', 'accepted') and w.lane <> t.lane

-- settle_strays: put them into their own lane
with due as (
    update duetime.due as d set lane = t.lane, pos = greatest(d.due_at, $1::bigint) from duetime.task as t
        where t.id = d.id and d.id = any ($2::uuid[])
)
update duetime.held as h set lane = t.lane from duetime.task as t where t.id = h.id and h.id = any ($2::uuid[])

-- low_entries: entries below the floor of their lane, where nobody looks
select d.id::text, l.handler, l.collection, l.priority
    from duetime.lane as l join duetime.lane_floor as f on f.id = l.id
join duetime.due as d on d.lane = l.id and d.pos < f.floor

-- raise_entries: bring them to the present
update duetime.due as d set pos = greatest(d.due_at, $1::bigint) from duetime.lane_floor as f where f.id = d.lane
    and d.pos < f.floor and d.id = any ($2::uuid[])

-- counted_tasks: what the tally should say
select t.lane, 'live' as state, count(*) as n from (
    select t.lane from duetime.task as t
    union all
    select w.lane from duetime.location as w where w.whole
) as t group by t.lane
union all
select h.lane, h.state, count(*) from duetime.history as h group by h.lane, h.state

-- counted_leaving: the same of a table that is on its way out; its tasks are tallied until it is dropped
select p.lane, p.state, count(*) from duetime.%partition as p group by p.lane, p.state

-- wrong_tally: lanes whose tally does not fit their tasks, all counted in one look
with counted as (
    %counted
), both_told as (
    select c.lane, c.state, c.n, 0 as told from counted as c union all select y.lane, y.state, 0, y.n
        from duetime.tally as y
)
select l.handler, l.collection, l.priority, b.state, sum(b.n)::bigint, sum(b.told)::bigint
from both_told as b left join duetime.lane as l on l.id = b.lane
group by b.lane, b.state, l.handler, l.collection, l.priority having sum(b.n) <> sum(b.told)

-- correct_tally: put that right by what is missing or too much, so that it fits whatever others add meanwhile
with counted as (
    %counted
), both_told as (
    select c.lane, c.state, c.n from counted as c union all select y.lane, y.state, -y.n from duetime.tally as y
)
insert into duetime.tally (lane, state, n) select b.lane, b.state, sum(b.n) from both_told as b group by b.lane, b.state
    having sum(b.n) <> 0
