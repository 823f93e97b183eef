-- new_tasks: the columns of new tasks, put where another statement says $tasks
duetime.new_tasks(least_id => $1::uuid, since_at => $2::bigint, newest_at => $3::bigint, ids => $4::text::uuid[],
    lanes => $5::text::integer[], handlers => $6::text::text[], payloads => $7::text::text[],
        dues => $8::text::bigint[],
    delays => $9::text::bigint[], submitters => $10::text::text[], keys => $11::text::text[],
        expiries => $12::text::bigint[],
    expiries_in => $13::text::bigint[], timeouts => $14::text::double precision[], retries => $15::text::text[],
    extras => $16::text::text[], schedules => $17::text::text[], planned => $18::text::bigint[])

-- add_new: tasks that wait for time alone and are most probably new
select duetime.add_new($19::bigint, $tasks)

-- add_new_and_tell: the same, and a wake-up after it
call duetime.add_new_and_tell($19::bigint, $tasks, $20::text, $21::text, null)

-- add_requested: tasks that are most probably new, with the requests that ask for them
select duetime.add_requested($19::bigint, $tasks, $20::text[], $21::text[], $22::text[])

-- add_requested_and_tell: the same, and a wake-up after it
call duetime.add_requested_and_tell($19::bigint, $tasks, $20::text[], $21::text[], $22::text[], $23::text, $24::text,
    null)

-- add: tasks that wait for time alone, leaving out those that cannot be added
select duetime.add($19::bigint, $tasks)

-- begin_adding: the time of a write
select duetime.begin_adding($1::bigint)

-- begin_adding_named: the same, and which of these handlers have other names
select duetime.begin_adding($1::bigint), array(select h.name from unnest($2::text[]) as h (name)
    where cardinality(duetime.names(h.name)) > 1)

-- lock_key: let nobody else add a task with this key by another name of its handler until this transaction has ended
select pg_advisory_xact_lock(hashtextextended((duetime.names($1::text))[1] || chr(1) || $2::text, 20260101))

-- key_holder: the live task of a key, by any name of the handler
select id::text from duetime.task where handler = any (duetime.names($1::text)) and key = $2::text and not queued

-- key_successor: the task that waits behind the live one of a key, and has the key next
select id::text from duetime.task where handler = any (duetime.names($1::text)) and key = $2::text and queued

-- queue_key: let a task that was just stored have a key after the live one that has it now
update duetime.task set key = $2::text, queued = true where id = $1::uuid

-- key_holders: the live tasks of several keys
select k.handler, k.key, t.id::text from unnest($1::text[], $2::text[]) as k (handler, key)
cross join lateral (select x.id from duetime.task as x where x.handler = any (duetime.names(k.handler))
    and x.key = k.key and not x.queued offset 0) as t

-- replace_waiting: give a task that waits, and that this transaction has locked, a new submission and a new position;
-- whether it is parked
with placed as (
    update duetime.due set lane = $3::integer, pos = greatest($5::bigint, $1::bigint), due_at = $5::bigint,
        expires_at = $7::bigint, tries = 0,
        size = octet_length($4::text) where id = $2::uuid
), held as (
    update duetime.held set lane = $3::integer, due_at = $5::bigint, expires_at = $7::bigint, tries = 0
        where id = $2::uuid
), counted as (
    insert into duetime.tally (lane, state, n) select m.lane, 'live', m.n
    from duetime.task as t cross join lateral (values (t.lane, -1), ($3::integer, 1)) as m (lane, n)
        where t.id = $2::uuid and t.lane <> $3::integer
)
update duetime.task set lane = $3::integer, handler = $12::text, payload = $4::text, due_at = $5::bigint,
    submitted_by = $6::text, expires_at = $7::bigint,
    timeout = $8::double precision, retry = $9::text, extras = $10::text, planned_at = $11::bigint where id = $2::uuid
returning exists (select from duetime.held as h where h.id = $2::uuid and h.reason in ('declaration', 'limit'))

-- live_parents: which of these tasks have not ended
select x.id::text from duetime.living($1::uuid[]) as x (id)

-- lock_parents: the same, and keep them from ending until this transaction has
select unnest(duetime.lock_parents($1::uuid[]))::text

-- take_entry: remove a task's due entry
delete from duetime.due where id = $1::uuid

-- end_task: the end of a task that never ran and stands nowhere
select duetime.end_tasks($1::bigint, $2::text, $3::text, array[$4::uuid], array[0], array[0], array[0])

-- hold: let new tasks wait for others instead of for their time
with child as (
    select c.id, c.waiting from unnest($1::uuid[], $2::integer[]) as c (id, waiting)
), entry as (delete from duetime.due where id = any ($1::uuid[]) returning *)
insert into duetime.held (id, lane, reason, waiting, due_at, expires_at, attempt, tries, crashes)
select e.id, e.lane, 'blocked', c.waiting, e.due_at, e.expires_at, e.attempt, e.tries, e.crashes
    from entry as e join child as c on c.id = e.id

-- add_edges: the parents that children wait for
insert into duetime.edge (parent, child, needs) select e.parent, e.child, e.needs
    from unnest($1::uuid[], $2::uuid[], $3::text[]) as e (child, parent, needs)

-- remember_vain: what a child waits for again if a parent that did not succeed is retried
insert into duetime.vain (child, parent, needs, ended_at) select $1::uuid, v.parent, v.needs, $2::bigint
    from unnest($3::uuid[], $4::text[]) as v (parent, needs)

-- open_window: let a task open the window of a throttled key, unless one is open; who comes at the same time waits here
insert into duetime.throttled as w (handler, key, task, until_at)
values ((duetime.names($1::text))[1], $2::text, $3::uuid, $4::bigint)
on conflict (handler, key) do update set task = excluded.task, until_at = excluded.until_at
    where w.until_at <= $5::bigint
returning w.task::text

-- window_of: the task that opened the window of a throttled key
select w.task::text from duetime.throttled as w where w.handler = (duetime.names($1::text))[1] and w.key = $2::text
    for update

-- name_window: say which task a throttled key is answered with, and until when
update duetime.throttled set task = $3::uuid, until_at = coalesce($4::bigint, until_at)
    where handler = (duetime.names($1::text))[1] and key = $2::text

-- tell_time: the server's clock
select duetime.clock()

-- notify: a wake-up that goes out with this transaction; the same one twice goes out once
select pg_notify($1::text, $2::text)
