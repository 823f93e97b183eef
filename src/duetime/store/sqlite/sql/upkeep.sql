-- expired_tasks: waiting tasks whose expiry has passed
select t.seq from duetime_task as t
where t.expires_at is not null and t.state is null and t.expires_at <= ?
    and not exists (select 1 from duetime_running as r where r.task = t.seq)
order by t.expires_at limit ?

-- expired_among: which of these tasks are past their expiry
select seq from duetime_task where expires_at <= ? and seq in (select value from json_each(?))

-- parked_in: parked tasks of a lane that are due
select h.task, h.attempt, h.tries, h.crashes from duetime_held as h indexed by duetime_held_parked
where h.reason in ('declaration', 'limit') and h.lane = ? and h.due_at <= ? order by h.task limit ?

-- parked_lanes: the lanes that have parked tasks
select distinct l.id, l.handler, l.collection from duetime_held as h indexed by duetime_held_parked
join duetime_lane as l on l.id = h.lane where h.reason in ('declaration', 'limit')

-- forget_ended_refusals: of tasks that do not live
delete from duetime_refusal where not exists (select 1 from duetime_task as t where t.seq = duetime_refusal.task
    and t.state is null)

-- old_tasks: finished tasks past their retention, and how much output they have
select t.seq, t.id, coalesce(t.attempt, 0), (select coalesce(sum(o.size), 0) from duetime_output as o
    where o.task = t.seq)
from duetime_task as t where t.state = ? and t.finished_at < ? order by t.finished_at, t.seq limit ?

-- lanes_named: the lanes of some handlers
select id from duetime_lane where handler in (select value from json_each(?))

-- walk: the next finished tasks by the time of their end, whosever they are
select t.seq, t.lane, t.finished_at from duetime_task as t indexed by duetime_task_finished
where t.state = ? and (t.finished_at, t.seq) > (?, ?) and t.finished_at < ? order by t.finished_at, t.seq limit ?

-- old_among: some of them, and how much output they have
select t.seq, t.id, coalesce(t.attempt, 0), (select coalesce(sum(o.size), 0) from duetime_output as o
    where o.task = t.seq)
from duetime_task as t where t.seq in (select value from json_each(?)) order by t.finished_at, t.seq limit ?

-- forget_windows: of throttled keys, that are over
delete from duetime_throttled where until_at <= ?

-- forget_hopeless: removed tasks wait for nothing again, nor do those that needed the success of one of them
delete from duetime_vain where child in (select value from json_each(:tasks)) or child in (
    select v.child from duetime_vain as v where v.parent in (select value from json_each(:tasks))
        and v.needs = 'success')

-- forget_vain_parents: what is removed is not waited for
delete from duetime_vain where parent in (select value from json_each(?))

-- delete_attempts: attempts of removed tasks
delete from duetime_attempt where task in (select value from json_each(?))

-- delete_tasks: tasks past their retention
delete from duetime_task where state is not null and seq in (select value from json_each(?))

-- homeless_tasks: live tasks that are in no location
select t.seq, t.id, t.lane, t.due_at,
    coalesce((select max(a.attempt) from duetime_attempt as a where a.task = t.seq), 0)
from duetime_task as t where t.state is null and not exists (select 1 from duetime_location as w where w.task = t.seq)

-- doubled: tasks that are in more than one location
select t.seq, t.id, max(w.location in ('running', 'accepted')), max(w.location = 'held'), max(w.location = 'due')
from duetime_location as w join duetime_task as t on t.seq = w.task group by t.seq having count(*) > 1

-- ghosts: locations of tasks that are gone or finished
select w.location, w.task from duetime_location as w left join duetime_task as t on t.seq = w.task
where t.seq is null or t.state is not null

-- delete_due_of: remove a task's due entry
delete from duetime_due where task = ?

-- delete_held_of: remove a task's held entry
delete from duetime_held where task = ?

-- delete_running_of: remove a task's claim
delete from duetime_running where task = ?

-- ownerless_attempts: attempts of workers that are not registered
select r.id, r.task, r.lane, r.due_at, r.claimed_at, r.attempt, r.tries, r.crashes, r.cancelling, t.due_at,
    t.expires_at, l.handler, r.worker
from duetime_running as r join duetime_task as t on t.seq = r.task join duetime_lane as l on l.id = r.lane
where r.worker <> '' and not exists (select 1 from duetime_worker as w where w.id = r.worker)

-- unbounded_attempts: accepted attempts that nothing says the deadline of
select r.id, r.task from duetime_running as r
where r.worker = '' and not exists (select 1 from duetime_accepted as a where a.task = r.task)

-- bound_attempt: let such an attempt time out now
insert into duetime_accepted (task, sender, deadline_at, silence, report_at) values (?1, '', ?2, null, ?2)

-- stray_deadlines: deadlines of attempts that are not accepted, or gone
select a.task from duetime_accepted as a
where not exists (select 1 from duetime_running as r where r.task = a.task and r.worker = '')

-- delete_deadline: forget the deadline of an attempt
delete from duetime_accepted where task = ?

-- ghost_keys: keys held by tasks that are gone or finished
select k.handler, k.key, k.task from duetime_key as k left join duetime_task as t on t.seq = k.task where t.seq is null
    or t.state is not null

-- missing_keys: live tasks whose key nobody holds
select l.handler, t.key, t.seq, t.id from duetime_task as t join duetime_lane as l on l.id = t.lane
where t.key is not null and t.state is null
and not exists (select 1 from duetime_key as k where k.handler = l.handler and k.key = t.key)

-- ended_edges: edges from parents that are finished or gone
select distinct e.parent, t.state from duetime_edge as e left join duetime_task as t on t.seq = e.parent
    where t.seq is null or t.state is not null

-- wrong_waiting: held tasks whose count does not fit their edges
select h.task, h.waiting, (select count(*) from duetime_edge as e where e.child = h.task) as edges
    from duetime_held as h
where h.reason = 'blocked' and (h.waiting <> (select count(*) from duetime_edge as e where e.child = h.task)
    or h.waiting = 0)

-- set_waiting: put the count of a held task right
update duetime_held set waiting = ? where task = ?

-- late_lanes: lanes and roads that claims would look into too late
select l.id, l.handler, l.collection, l.priority from duetime_lane as l
where l.id > 0 and l.next_at > (select min(d.pos) from duetime_due as d where d.lane = l.id)
union all
select -r.id, r.handler, '', r.priority from duetime_road as r
where r.next_at > (select min(d.pos) from duetime_due as d where d.lane < 0 and -d.lane >> 20 = r.id)
