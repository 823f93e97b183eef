-- last_task: the highest number of a task, and when that was submitted
select seq, submitted_at from duetime_task where seq = (select max(seq) from duetime_task)

-- raise_submitted_high: remember the newest task's time before tasks with earlier times follow it
update duetime_fact set value = max(value, ?) where name = 'submitted_high'

-- raise_submitted_back: remember how far those are behind
update duetime_fact set value = max(value, (select h.value from duetime_fact as h where h.name = 'submitted_high') - ?)
    where name = 'submitted_back'

-- find_lane: a lane by what makes it one
select l.id, coalesce(r.next_at, l.next_at) from duetime_lane as l
left join duetime_road as r on r.id = -l.id >> 20 and l.id < 0
where l.handler = ?1 and l.collection = ?2 and l.priority = ?3

-- extend_road: a number for one more lane on the road of its handler and priority, if it has a collection
insert into duetime_road (handler, priority, lanes, next_at) select ?1, ?3, 1, 4611686018427387904 where ?2 <> ''
on conflict (handler, priority) do update set lanes = lanes + 1

-- add_lane: a lane that nothing waits in yet; its road has been extended
insert into duetime_lane (id, handler, collection, priority, next_at) values (
    case ?2 when '' then coalesce((select max(id) from duetime_lane where id > 0), 0) + 1
        else (select -((id << 20) + lanes) from duetime_road where handler = ?1 and priority = ?3) end,
    ?1, ?2, ?3, 4611686018427387904)
returning id, next_at

-- collections: those that a handler has used
select distinct collection from duetime_lane where handler = ?

-- lower_lane: let claims look into a lane as early as its newest position asks
update duetime_lane set next_at = ?2 where id = ?1 and next_at > ?2

-- lower_road: the same of a road
update duetime_road set next_at = ?2 where id = -?1 and next_at > ?2

-- insert_task: a live task, standing nowhere yet
insert into duetime_task (seq, id, lane, key, payload, due_at, submitted_at, submitted_by, expires_at, timeout, retry,
    extras, schedule, planned_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- insert_due: an entry in a lane
insert into duetime_due (lane, pos, task, due_at, attempt, tries, crashes) values (?, ?, ?, ?, ?, ?, ?)

-- insert_key: the live holder of a key, or the one that is queued behind it
insert into duetime_key (handler, key, task, queued) values (?, ?, ?, ?)

-- move_key: a key by another name of the handler
update duetime_key set handler = ? where task = ?

-- insert_held: a task that waits for something other than time
insert into duetime_held (task, lane, reason, waiting, due_at, attempt, tries, crashes) values (?, ?, ?, ?, ?, ?, ?, ?)

-- insert_edge: a parent that a child waits for
insert into duetime_edge (parent, child, needs) values (?, ?, ?)

-- known_ids: which of these ids are stored already
select id from duetime_task where id in (select value from json_each(?))

-- key_holders: which of these [handler, key] pairs are held by a live task, and which is queued behind it
select k.handler, k.key, k.task, k.queued from json_each(?) as pair
join duetime_key as k on k.handler = pair.value ->> 0 and k.key = pair.value ->> 1

-- open_window: let a task open the window of a throttled key, unless one is open
insert into duetime_throttled (handler, key, task, until_at) values (?1, ?2, ?3, ?4)
on conflict (handler, key) do update set task = excluded.task, until_at = excluded.until_at where until_at <= ?5
returning task

-- window_of: the task that opened the window of a throttled key
select task from duetime_throttled where handler = ? and key = ?

-- name_window: say which task a throttled key is answered with, and until when
update duetime_throttled set task = ?3, until_at = coalesce(?4, until_at) where handler = ?1 and key = ?2

-- parents: state of tasks that others want to wait for
select id, seq, state from duetime_task where id in (select value from json_each(?))

-- replace_task: a waiting task takes over what a new one asks for
update duetime_task set lane = ?, payload = ?, due_at = ?, submitted_by = ?, expires_at = ?, timeout = ?, retry = ?,
    extras = ?, planned_at = ?
where seq = ?

-- take_due: remove a task's due entry and return it
delete from duetime_due where task = ? returning lane, due_at, attempt, tries, crashes

-- move_held: change when and where a held task will wait once it is free
update duetime_held set lane = ?, due_at = ?, tries = ? where task = ?

-- held_counters: what a held task carries
select lane, due_at, attempt, tries, crashes from duetime_held where task = ?
