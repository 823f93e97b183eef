-- steps_of: the steps of a task, in the order in which they were first saved
select s.name, s.kind, s.attempt, s.at, s.done, s.late, s.data, s.signal, s.wake_at, s.children
from duetime_step as s join duetime_task as t on t.seq = s.task where t.id = ? order by s.number

-- one_step: a step of a task
select name, kind, attempt, at, done, late, data, signal, wake_at, children from duetime_step
where task = ? and name = ?

-- attempt_of_worker: the number of a task if a worker runs this attempt of it
select task from duetime_running where id = ? and attempt = ? and worker = ?

-- put_step: save a step, or what a wait has brought
insert into duetime_step (task, name, kind, attempt, at, done, data, signal, wake_at, children)
values (:task, :name, :kind, :attempt, :now, :done, :data, :signal, :wake_at, :children)
on conflict (task, name) do update set kind = excluded.kind, attempt = excluded.attempt, at = excluded.at,
    done = excluded.done, late = 0, data = excluded.data, signal = excluded.signal, wake_at = excluded.wake_at,
    children = excluded.children

-- put_signal: a signal that was sent, unless it is stored already
insert into duetime_signal (name, id, data, sent_at, sent_by, keep_until, looked) values (?, ?, ?, ?, ?, ?, ?)
on conflict do nothing returning number

-- unseen_signals: names of signals that nobody has looked at yet
select distinct name from (select name from duetime_signal indexed by duetime_signal_unseen where looked = 0 limit ?)

-- see_signals: note that somebody has looked who waits for these names
update duetime_signal set looked = 1 where looked = 0 and name in (select value from json_each(?))

-- waits_for: who waits for a signal, the longest first
select s.number, s.task, t.id from duetime_step as s join duetime_task as t on t.seq = s.task
where s.done = 0 and s.signal = :name and (s.wake_at is null or s.wake_at > :now) and t.state is null
order by s.number limit :limit

-- free_signals: kept signals of a name that nobody has got, the oldest first
select number, data from duetime_signal where task is null and name = :name and keep_until > :now order by number
limit :limit

-- take_signal: give a signal to a task
update duetime_signal set task = ?, looked = 1 where number = ?

-- end_wait: what a signal has brought, or that its time is over
update duetime_step set done = 1, late = :late, data = :data, woken = 0, at = :now where number = :number

-- late_waits: waits whose time is over
select s.number, s.task from duetime_step as s where s.done = 0 and s.signal is not null and s.wake_at <= ?
order by s.wake_at limit ?

-- next_wait: when the next wait is over that is not over now; for simulations
select min(wake_at) from duetime_step where done = 0 and signal is not null and wake_at > ?

-- hold_suspended: a task whose attempt waits for a step
insert into duetime_held (task, lane, reason, waiting, due_at, attempt, tries, crashes, step)
values (?, ?, 'suspended', ?, ?, ?, ?, ?, ?)

-- wakeable: suspended tasks that have nothing to wait for
select h.task from duetime_held as h where h.reason = 'suspended' and h.task in (select value from json_each(?))
and not exists (select 1 from duetime_edge as e where e.child = h.task)
and not exists (select 1 from duetime_step as s where s.task = h.task and s.name = h.step and s.done = 0
    and s.signal is not null)

-- mark_woken: whoever ended the waits of these tasks has looked
update duetime_step set woken = 1 where woken = 0 and task in (select value from json_each(?))

-- asleep: tasks whose wait has ended, and nobody has looked whether they go on
select task from duetime_step indexed by duetime_step_asleep where woken = 0 limit ?

-- open_calls: the next tasks that wait for others, whether they live, and these others
select s.number, s.task, t.state is null, s.children from duetime_step as s join duetime_task as t on t.seq = s.task
where s.done = 0 and s.children is not null and s.number > ? order by s.number limit ?

-- close_call: nobody waits for it any more
update duetime_step set done = 1 where number = ?

-- forget_signals: those that are kept no longer
delete from duetime_signal where number in (select number from duetime_signal where keep_until <= ? limit ?)

-- list_signals: kept signals, the oldest first
select number, name, id, data, sent_at, sent_by, keep_until, task from duetime_signal
where number > :after and keep_until > :now and (:name is null or name = :name) order by number limit :limit

-- delete_signals: those of a name, or one of them
delete from duetime_signal where name = :name and (:id is null or id = :id)

-- delete_steps: those of removed tasks
delete from duetime_step where task in (select value from json_each(?))

-- has_steps: whether parts of a task's work are saved
select 1 from duetime_step where task = ? limit 1

-- any_wait: whether a look can find anything to do
select exists (select 1 from duetime_signal where looked = 0)
    or exists (select 1 from duetime_step where done = 0 and signal is not null and wake_at <= :now)
    or exists (select 1 from duetime_step where woken = 0)
    or exists (select 1 from duetime_step where done = 0 and children is not null)
    or exists (select 1 from duetime_signal where keep_until <= :now)
