-- tell_task_added: a task was submitted, perhaps by a schedule
create trigger if not exists duetime_tell_task_added after insert on duetime_task begin
    insert into duetime_event (at, name, subject, handler, collection, attempt, schedule, planned_at)
    select new.submitted_at, 'task.submitted', new.id, l.handler, nullif(l.collection, ''), 0, new.schedule,
        new.planned_at from duetime_lane as l where l.id = new.lane;
    insert into duetime_event (at, name, subject, handler, collection, schedule, planned_at, note)
    select new.submitted_at, 'schedule.fired', new.schedule, l.handler, nullif(l.collection, ''), new.schedule,
        new.planned_at, new.id from duetime_lane as l where l.id = new.lane and new.schedule is not null;
end

-- tell_task_started: a worker has taken a task
create trigger if not exists duetime_tell_task_started after insert on duetime_running when new.worker <> '' begin
    insert into duetime_event (at, name, subject, handler, collection, attempt, worker)
    select new.claimed_at, 'task.started', new.id, l.handler, nullif(l.collection, ''), new.attempt, new.worker
    from duetime_lane as l where l.id = new.lane;
end

-- tell_task_ended: a task has reached a final state
create trigger if not exists duetime_tell_task_ended after update of state on duetime_task
when old.state is null and new.state is not null begin
    insert into duetime_event (at, name, subject, handler, collection, attempt, outcome, worker, schedule, planned_at,
        error)
    select new.finished_at, 'task.quarantined', new.id, l.handler, nullif(l.collection, ''), new.attempt, new.outcome,
        new.worker, new.schedule, new.planned_at, new.error
    from duetime_lane as l where l.id = new.lane and new.state = 'failed' and new.outcome = 'lost';
    insert into duetime_event (at, name, subject, handler, collection, attempt, outcome, worker, schedule, planned_at,
        error)
    select new.finished_at, 'task.' || new.state, new.id, l.handler, nullif(l.collection, ''), new.attempt, new.outcome,
        new.worker, new.schedule, new.planned_at, new.error from duetime_lane as l where l.id = new.lane;
end

-- tell_task_retried: an operator has taken a finished task back
create trigger if not exists duetime_tell_task_retried after update of state on duetime_task
when old.state is not null and new.state is null begin
    insert into duetime_event (at, name, subject, handler, collection, attempt, outcome, schedule, planned_at)
    select new.due_at, 'task.retried', new.id, l.handler, nullif(l.collection, ''), coalesce(old.attempt, 0),
        old.outcome, new.schedule, new.planned_at from duetime_lane as l where l.id = new.lane;
end

-- tell_attempt_ended: an attempt has ended and its task goes on; the last attempt of a task that is taken back is
-- written while the task is final
create trigger if not exists duetime_tell_attempt_ended after insert on duetime_attempt
when new.outcome in ('failed', 'timed_out', 'retry_later', 'lost', 'released') begin
    insert into duetime_event (at, name, subject, handler, collection, attempt, outcome, worker, schedule, planned_at,
        error)
    select new.finished_at, case new.outcome when 'lost' then 'task.lost' when 'released' then 'task.released'
        else 'task.retrying' end, t.id, l.handler, nullif(l.collection, ''), new.attempt, new.outcome, new.worker,
        t.schedule, t.planned_at, new.error
    from duetime_task as t join duetime_lane as l on l.id = t.lane where t.seq = new.task and t.state is null;
end

-- tell_worker_started: a worker has registered
create trigger if not exists duetime_tell_worker_started after insert on duetime_worker begin
    insert into duetime_event (at, name, subject, worker, note)
    values (new.started_at, 'worker.started', new.id, new.id, new.host);
end

-- tell_worker_left: a worker has unregistered, or was found dead
create trigger if not exists duetime_tell_worker_left after delete on duetime_worker begin
    insert into duetime_event (at, name, subject, worker, note)
    values (coalesce(old.lost_at, cast((julianday('now') - 2440587.5) * 86400000000 as integer)),
        iif(old.lost_at is null, 'worker.stopped', 'worker.lost'), old.id, old.id, old.host);
end

-- tell_gate_set: a gate was closed
create trigger if not exists duetime_tell_gate_set after insert on duetime_gate begin
    insert into duetime_event (at, name, subject, handler, collection, until_at, note, by)
    values (new.set_at, iif(new.action = 'pause', 'gate.paused', 'gate.dropped'), new.handler, new.handler,
        nullif(new.collection, ''), new.until_at, new.note, new.set_by);
end

-- tell_gate_opened: a gate was opened, or its time was over
create trigger if not exists duetime_tell_gate_opened after delete on duetime_gate begin
    insert into duetime_event (at, name, subject, handler, collection, until_at, note, by)
    values (cast((julianday('now') - 2440587.5) * 86400000000 as integer), 'gate.opened', old.handler, old.handler,
        nullif(old.collection, ''), old.until_at, old.note, old.set_by);
end

-- tell_schedule_skipped: occurrences became no task
create trigger if not exists duetime_tell_schedule_skipped after insert on duetime_skip begin
    insert into duetime_event (at, name, subject, handler, schedule, planned_at, until_at, count, outcome, note)
    values (new.at, iif(new.reason = 'missed', 'schedule.missed', 'schedule.skipped'), new.schedule,
        (select s.handler from duetime_schedule as s where s.name = new.schedule), new.schedule, new.planned_at,
        new.until_at, new.count, new.reason, new.note);
end

-- tell_schedule_paused: a schedule was paused, by somebody or by itself, or goes on
create trigger if not exists duetime_tell_schedule_paused after update of paused on duetime_schedule
when old.paused <> new.paused begin
    insert into duetime_event (at, name, subject, handler, collection, schedule, by)
    values (new.changed_at, iif(new.paused, 'schedule.paused', 'schedule.resumed'), new.name, new.handler,
        nullif(new.collection, ''), new.name, new.changed_by);
end

-- event_triggers: those that there are
select name from sqlite_master where type = 'trigger' and name like 'duetime_tell_%'

-- put_follower: begin to follow, or go on
insert into duetime_follower (name, until_at, cursor) values (:name, :until_at, :cursor)
on conflict (name) do update set until_at = max(until_at, excluded.until_at) returning cursor

-- followers: who follows events
select name, until_at, cursor from duetime_follower order by name

-- move_follower: remember how far it has dealt with events, unless somebody else has meanwhile
update duetime_follower set cursor = :after where name = :name and cursor = :before

-- delete_follower: follow no more
delete from duetime_follower where name = ?

-- delete_gone_followers: those whose time is over
delete from duetime_follower where until_at <= ?

-- last_event: the number of the last event that was ever written
select coalesce(max(seq), 0) from sqlite_sequence where name = 'duetime_event'

-- some_events: events after a number
select number, at, name, subject, handler, collection, attempt, outcome, worker, schedule, planned_at, until_at, count,
    note, by, error
from duetime_event where number > ? order by number limit ?

-- delete_events: old events that everybody has dealt with
delete from duetime_event where number in (
    select number from duetime_event where number <= :number and at < :before order by number limit :limit)
