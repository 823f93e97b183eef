-- begin_output: attempts whose first output comes, of tasks that exist
insert into duetime.output (task, attempt, lane, size, whole, kept_at)
select u.task, u.attempt, f.lane, 0, false, coalesce($4::bigint, duetime.clock())
from unnest($1::uuid[], $2::integer[]) as u (task, attempt)
cross join lateral (
    select t.lane from duetime.task as t where t.id = u.task
    union all
    select h.lane from duetime.history as h where h.id = u.task and h.finished_at >= $3::bigint
    union all
    select coalesce(c.lanes[array_position(c.tasks, u.task)], c.lanes[1]) from duetime.claim as c
    where u.task between c.first_id and c.last_id and u.task = any (c.tasks)
    union all
    select d.lane from duetime.due as d where d.id = u.task
    limit 1
) as f
on conflict (task, attempt) do nothing

-- lock_output: how much is kept of some attempts, and whether it is all; locked in one order, so that two never wait in
-- a circle
select o.task::text, o.attempt, o.size, o.whole from duetime.output as o
join unnest($1::uuid[], $2::integer[]) as u (task, attempt) on u.task = o.task and u.attempt = o.attempt
order by o.task, o.attempt for update of o

-- insert_chunks: pieces of output
insert into duetime.output_chunk (task, attempt, start, size, text, words)
select u.task, u.attempt, u.start, u.size, u.text, u.words::tsvector
from unnest($1::uuid[], $2::integer[], $3::bigint[], $4::integer[], $5::text[], $6::text[]) as u (task, attempt, start,
    size, text, words)

-- extend_output: say how much is kept now
update duetime.output as o set size = u.size, whole = u.whole
from unnest($1::uuid[], $2::integer[], $3::bigint[], $4::boolean[]) as u (task, attempt, size, whole)
where o.task = u.task and o.attempt = u.attempt

-- output_of_task: which attempts of a task have output
select o.attempt, o.size, o.whole, o.kept_at from duetime.output as o where o.task = $1::uuid order by o.attempt

-- output_chunks: pieces of a task's output beyond an offset
select c.attempt, c.start, c.text, o.whole and c.start + c.size = o.size
from duetime.output_chunk as c join duetime.output as o on o.task = c.task and o.attempt = c.attempt
where c.task = $1::uuid and ($2::integer is null or c.attempt = $2::integer)
and c.attempt >= $3::integer and (c.attempt > $3::integer or c.start + c.size > $4::bigint)
order by c.attempt, c.start limit $5::integer

-- search_head: attempts with output, and the first piece that has the first word
select o.task::text, o.attempt, o.kept_at, (
    select c.text from duetime.output_chunk as c
    where c.task = o.task and c.attempt = o.attempt and c.words @@ $word::tsquery order by c.start limit 1
)
from duetime.output as o

-- search_word: that have a word
exists (select from duetime.output_chunk as c where c.task = o.task and c.attempt = o.attempt
    and c.words @@ $value::tsquery)

-- search_lanes: of some lanes
o.lane = any ($value::integer[])

-- search_after: whose output began at or after an instant
o.kept_at >= $value::bigint

-- search_before: whose output began before an instant
o.kept_at < $value::bigint

-- search_beyond: behind the page before
(o.kept_at, o.task, o.attempt) < ($instant::bigint, $value::uuid, $number::integer)

-- search_order: a page of them, the latest first
order by o.kept_at desc, o.task desc, o.attempt desc limit $1::integer

-- only_logs: tasks with a word in their output
exists (select from duetime.output_chunk as c where c.task = $task and c.words @@ $value::tsquery)

-- any_output: whether anything has been kept at all
select exists (select from duetime.output)

-- remove_output: the output of tasks that are gone, a batch of them after an id, but not that of some handlers
with leaving as materialized (
    select p.id, p.handler from duetime.%partition as p where p.id > $1::uuid order by p.id limit $2::integer
), ending as materialized (
    select s.id from leaving as s where s.handler <> all ($3::text[])
), chunks as (
    delete from duetime.output_chunk as c where c.task = any (array(select s.id from ending as s))
), gone as (
    delete from duetime.output as o where o.task = any (array(select s.id from ending as s))
)
select s.id::text from leaving as s order by s.id desc limit 1

-- ghost_output: output of tasks that are gone; pieces alone are left if some came while their task was pruned
select o.task::text from (select k.task from duetime.output as k union select c.task from duetime.output_chunk as c)
    as o
where not exists (select from duetime.task as t where t.id = o.task) and not exists (select from duetime.history as h
    where h.id = o.task)
and not exists (select from duetime.due as d where d.id = o.task)
    and (o.task in (select r.id from duetime.open_task as r)) is not true

-- delete_output: remove it
with chunks as (
    delete from duetime.output_chunk as c where c.task = any ($1::uuid[])
)
delete from duetime.output as o where o.task = any ($1::uuid[])
