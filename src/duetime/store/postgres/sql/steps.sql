-- steps_of: the steps of a task, in the order in which they were first saved
select s.name, s.kind, s.attempt, s.at, s.done, s.late, s.data, s.signal, s.wake_at, s.children
from duetime.step as s where s.task = $1::uuid order by s.number

-- save_steps: save steps of a worker's attempts; which of them are its own
select duetime.save_steps($1::bigint, $2::text, $3::uuid[], $4::integer[], $5::text[], $6::text[], $7::boolean[],
    $8::text[], $9::text[], $10::bigint[], $11::text[])

-- named_steps: these steps as they are stored
select s.task::text, s.name, s.kind, s.attempt, s.at, s.done, s.late, s.data, s.signal, s.wake_at, s.children
from unnest($1::uuid[], $2::text[]) as n (task, name) join duetime.step as s on s.task = n.task and s.name = n.name

-- put_signals: store signals; the indexes (from 1) of those that are new
with sent as (
    select n.*, n.index::integer as said
    from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[]) with ordinality
        as n (name, id, data, sent_by, keep, index)
), first as (
    select distinct on (s.name, s.id) s.* from sent as s order by s.name, s.id, s.said
), stored as (
    insert into duetime.signal (name, id, data, sent_at, sent_by, keep_until, looked)
    select f.name, f.id, f.data, x.now_at, f.sent_by, x.now_at + f.keep, false
    from first as f cross join (select coalesce($1::bigint, duetime.clock()) as now_at) as x order by f.said
    on conflict do nothing returning name, id
)
select f.said from first as f join stored as s on s.name = f.name and s.id = f.id

-- match_signals: give signals of these names to who waits for them
select duetime.match_signals($1::bigint, $2::text[])::text[]

-- see_signals: note that somebody has looked who waits for these names
update duetime.signal set looked = true where not looked and name = any ($1::text[])

-- unseen_signals: names of signals that nobody has looked at yet
select distinct u.name from (
    select g.name from duetime.signal as g where not g.looked order by g.number limit $1::integer
) as u

-- wake: let suspended tasks go on that have nothing to wait for
select w.p_woken, w.p_earliest from duetime.wake($1::bigint, $2::uuid[]) as w

-- end_late_waits: end waits whose time is over
select duetime.end_late_waits($1::bigint, $2::integer)::text[]

-- suspend: let tasks wait for a step
select duetime.suspend($1::uuid[], $2::text[], $3::integer[])

-- put_call_edges: whom suspended tasks wait for, who are locked; for an edge a suspended task is the child
insert into duetime.edge (parent, child, needs) select e.parent, e.child, 'end'
from unnest($1::uuid[], $2::uuid[]) as e (parent, child) on conflict do nothing

-- asleep: tasks whose wait has ended, and nobody has looked whether they go on
select distinct u.task::text from (select s.task from duetime.step as s where not s.woken order by s.number
    limit $1::integer) as u

-- open_calls: the next tasks that wait for others, and these others
select s.number, s.task::text, s.children from duetime.step as s where not s.done and s.children is not null
    and s.number > $1::bigint order by s.number limit $2::integer

-- living_of: those of these tasks that live
select x.id::text from duetime.living($1::uuid[]) as x (id)

-- close_calls: nobody waits for them any more
update duetime.step set done = true where task = any ($1::uuid[]) and not done and children is not null

-- forget_signals: those that are kept no longer
delete from duetime.signal where (name, id) in (select g.name, g.id from duetime.signal as g
    where g.keep_until <= coalesce($1::bigint, duetime.clock()) limit $2::integer) returning 1

-- list_signals: kept signals, the oldest first
select g.number, g.name, g.id, g.data, g.sent_at, g.sent_by, g.keep_until, g.task::text from duetime.signal as g
where g.number > $2::bigint and g.keep_until > coalesce($1::bigint, duetime.clock())
    and ($3::text is null or g.name = $3::text) order by g.number limit $4::integer

-- delete_signals: those of a name, or one of them
delete from duetime.signal where name = $1::text and ($2::text is null or id = $2::text) returning 1

-- has_steps: whether parts of a task's work are saved
select from duetime.step where task = $1::uuid limit 1

-- forget_steps_of_gone: steps of tasks that are not stored any more
with gone as (
    select distinct s.task from duetime.step as s
    where not exists (select from duetime.task as t where t.id = s.task)
        and not exists (select from duetime.history as h where h.id = s.task)
)
delete from duetime.step as s where s.task in (select g.task from gone as g
    where (g.task in (select x.id from duetime.living(array(select y.task from gone as y)) as x (id))) is not true)
