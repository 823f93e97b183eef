-- declare_limit: a limit as code declares it; one that is declared differently takes another version
insert into duetime_limit (name, declared, uses) values (?1, ?2, ?3)
on conflict (name) do update set declared = excluded.declared, uses = json_patch(uses, excluded.uses),
    version = version + (declared <> excluded.declared)
where declared <> excluded.declared or json_patch(uses, excluded.uses) <> uses

-- limit: one limit
select declared, uses, version, own, until_at from duetime_limit where name = ?

-- others_permits: what other workers have, lack and how many they are
select coalesce(sum(permits), 0), coalesce(sum(max(wanted - permits, 0)), 0),
    coalesce(sum(wanted > 0 or permits > 0), 0)
from duetime_permit where name = ? and worker <> ?

-- accepted_by_handler: attempts that go on elsewhere: accepted ones, and those of pull workers
select l.handler, count(*) from duetime_running as r join duetime_lane as l on l.id = r.lane
where r.worker = '' or r.worker in (select id from duetime_worker where lease is not null) group by l.handler

-- permit: what a worker has
select permits, wanted, number, since from duetime_permit where name = ? and worker = ?

-- longest_waiting: the other worker whose attempt has waited longest
select since, worker from duetime_permit where name = ? and worker <> ? and since is not null
order by since, worker limit 1

-- limits_waited_for: limits of which somebody has waited for long
select distinct name from duetime_permit where since is not null

-- put_permit: what a worker has from now on
insert or replace into duetime_permit (name, worker, permits, wanted, seen, number, since) values (?, ?, ?, ?, ?, ?, ?)

-- delete_permits: a worker is gone
delete from duetime_permit where worker = ?

-- begin_rates_anew: forget what is spent of rates that change
delete from duetime_spent where name = ?1
    and (select own_rates from duetime_limit where name = ?1) is not ?2

-- put_limit: what an operator has set
update duetime_limit set own = ?2, until_at = ?3, note = ?4, set_by = ?5, set_at = ?6, own_rates = ?7,
    version = version + 1
where name = ?1 returning version

-- all_limits: every limit
select name, declared, uses, version, own, until_at, note, set_by, set_at, by, rates, over, own_rates
from duetime_limit order by name

-- all_permits: what every worker has
select name, worker, permits, wanted, seen from duetime_permit order by name, worker

-- counted_usages: what the store counts, and what attempts take of it
select name, by, uses from duetime_limit where by is not null or rates <> '[]' or over <> 'wait' order by name

-- declare_counted: a limit that the store counts, as code declares it
insert into duetime_limit (name, declared, uses, by, rates, over)
values (:name, :declared, :uses, :by, :rates, :over)
on conflict (name) do update set declared = excluded.declared, uses = json_patch(uses, excluded.uses),
    by = excluded.by, rates = excluded.rates, over = excluded.over, version = version + 1
where declared <> excluded.declared or json_patch(uses, excluded.uses) <> uses or by is not excluded.by
    or rates <> excluded.rates or over <> excluded.over

-- forget_counted: no code has this limit any more as one that the store counts
update duetime_limit set by = null, rates = '[]', over = 'wait' where name = ? and uses = '{}'

-- limit_by: the key of a limit
select by from duetime_limit where name = ?

-- set_uses: handlers that take something of a limit
update duetime_limit set uses = ?, version = version + 1 where name = ?

-- limits_named: some limits that the store counts
select name, declared, own, until_at,
    case when own_rates is null or until_at <= :now then rates else own_rates end, over
from duetime_limit where name in (select value from json_each(:names))

-- candidates: those of these tasks whose handler has limits that the store counts
select t.seq, l.handler, l.collection, t.payload, t.extras, d.attempt + 1
from json_each(:tasks) as chosen cross join duetime_due as d on d.task = chosen.value
    cross join duetime_task as t on t.seq = d.task cross join duetime_lane as l on l.id = d.lane
where l.handler in (select value from json_each(:handlers))

-- any_limited: whether a task waits under a limit
select exists (select 1 from duetime_held where reason = 'limit')

-- partitions_known: the index among these partitions, what is taken, whether tasks wait, and its own number, of those
-- of which something is known
with known as materialized (
    select s.key as spot, (select sum(a.takes) from duetime_admitted as a
            where a.name = s.value ->> 0 and a.part = s.value ->> 1) as taken,
        :waits and exists (select 1 from duetime_held as h
            where h.reason = 'limit' and h.limit_name = s.value ->> 0 and h.part = s.value ->> 1) as waits,
        (select p.own from duetime_partition as p where p.name = s.value ->> 0 and p.part = s.value ->> 1
            and (p.until_at is null or p.until_at > :now)) as own
    from json_each(:spots) as s
)
select json_group_array(json_array(k.spot, k.taken, k.waits, k.own)) from known as k
where k.taken is not null or k.waits or k.own is not null

-- partitions_spent: what is spent of rates, by the index among these partitions
select json_group_array(json_array(s.key, x.rate, x.at, x.used))
from json_each(?) as s cross join duetime_spent as x on x.name = s.value ->> 0 and x.part = s.value ->> 1

-- partition_tasks: its attempts
select task from duetime_admitted where name = ? and part = ? and attempt is not null order by task

-- partition_waiting: its first parked tasks
select task, takes, due_at from duetime_held where reason = 'limit' and limit_name = ? and part = ?
order by priority desc, due_at, task limit ?

-- admitted_rows: the rows of some tasks
select json_group_array(json_array(task, name, part, takes, attempt, at)) from duetime_admitted
where task in (select value from json_each(?))

-- put_admitted: what tasks take
insert or replace into duetime_admitted (task, name, part, takes, attempt, at)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 from json_each(?)

-- delete_admitted: a task takes nothing of a limit any more
delete from duetime_admitted where task = ? and name = ?

-- spots_left: partitions of which some attempts took a part, and in which others wait
select distinct a.name, a.part from json_each(?) as s cross join duetime_task as t on t.id = s.value ->> 0
    cross join duetime_admitted as a on a.task = t.seq and a.attempt = s.value ->> 1
where exists (select 1 from duetime_held as h where h.reason = 'limit' and h.limit_name = a.name and h.part = a.part)

-- leave_admitted: what some attempts took is free
delete from duetime_admitted where (task, attempt) in (select t.seq, value ->> 1
    from json_each(?) cross join duetime_task as t on t.id = value ->> 0)

-- put_spent: what is spent of rates
insert or replace into duetime_spent (name, part, rate, at, used)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 from json_each(?)

-- park_limited: let a task wait under a limit that is due
insert into duetime_held (task, lane, reason, waiting, due_at, attempt, tries, crashes, limit_name, part, takes,
    priority)
select d.task, d.lane, 'limit', 0, d.due_at, d.attempt, d.tries, d.crashes, ?2, ?3, ?4, l.priority
from duetime_due as d cross join duetime_lane as l on l.id = d.lane where d.task = ?1

-- parked_task_in: the parked tasks of a partition
select task, attempt, tries, crashes from duetime_held where reason = 'limit' and limit_name = ? and part = ?

-- parked_for: the parked tasks of a handler under a limit, or of all handlers
select h.task from duetime_held as h cross join duetime_lane as l on l.id = h.lane
where h.reason = 'limit' and h.limit_name = ?1 and (?2 is null or l.handler = ?2)

-- parked_spots: partitions in which tasks wait
select distinct limit_name, part from duetime_held where reason = 'limit' limit ?

-- vain_admitted: rows of attempts that are not open, and of tasks that could go on and wait no more or are gated
select a.task, a.name, a.part from duetime_admitted as a
where case when a.attempt is null
    then not exists (select 1 from duetime_due as d join duetime_lane as l on l.id = d.lane where d.task = a.task
        and not exists (select 1 from duetime_gate as g where g.handler = l.handler
            and g.collection in ('', l.collection) and (g.until_at is null or g.until_at > :now)))
    else not exists (select 1 from duetime_running as r where r.task = a.task and r.attempt = a.attempt) end
limit :limit

-- forget_spent: rates whose burst is whole again for so long, and days that are over
delete from duetime_spent where at < :now - :whole_for and (used = 0 or at < :now - 172800000000)

-- set_partition: a partition's own number
insert or replace into duetime_partition (name, part, own, until_at, note, set_by, set_at) values (?, ?, ?, ?, ?, ?, ?)

-- reset_partition: the limit's number holds for it again
delete from duetime_partition where name = ? and part = ?

-- forget_partitions: numbers that hold no more
delete from duetime_partition where until_at <= ?

-- counted_sums: what runs and waits under each limit
select f.name, (select coalesce(sum(a.takes), 0) from duetime_admitted as a where a.name = f.name),
    (select count(*) from duetime_held as h where h.reason = 'limit' and h.limit_name = f.name)
from duetime_limit as f where f.by is not null or f.rates <> '[]' or f.over <> 'wait'

-- list_partitions: the partitions of a limit, by name, after one of them
select x.part, (select coalesce(sum(a.takes), 0) from duetime_admitted as a where a.name = :name and a.part = x.part),
    (select count(*) from duetime_held as h where h.reason = 'limit' and h.limit_name = :name and h.part = x.part),
    (select min(h.due_at) from duetime_held as h where h.reason = 'limit' and h.limit_name = :name
        and h.part = x.part),
    p.own, p.until_at, p.note, p.set_by
from (
    select a.part from duetime_admitted as a where a.name = :name
    union select h.part from duetime_held as h where h.reason = 'limit' and h.limit_name = :name
    union select o.part from duetime_partition as o where o.name = :name
) as x left join duetime_partition as p on p.name = :name and p.part = x.part
where (:only is null and (:after is null or x.part > :after)) or x.part = :only order by x.part limit :limit

-- tasks_admitted: the ids of tasks that run in a partition
select t.id from duetime_admitted as a cross join duetime_task as t on t.seq = a.task
where a.name = ? and a.part = ? and a.attempt is not null order by a.at limit ?

-- parked_under: the limit and partition under which a task waits, and how many wait before it
select h.limit_name, h.part, (select count(*) from duetime_held as o where o.reason = 'limit'
    and o.limit_name = h.limit_name and o.part = h.part
    and (-o.priority, o.due_at, o.task) < (-h.priority, h.due_at, h.task))
from duetime_task as t cross join duetime_held as h on h.task = t.seq where t.id = ? and h.reason = 'limit'
