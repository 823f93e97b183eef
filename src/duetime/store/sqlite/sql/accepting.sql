-- accept_running: take these attempts from their worker
update duetime_running set worker = '' where id = :id

-- insert_accepted: when an accepted attempt times out
insert into duetime_accepted (task, sender, deadline_at, silence, report_at, location, withdrawing)
values (:task, :sender, :deadline_at, :silence, :report_at, :location, :withdrawing)

-- accepted_from: whether this worker has handed over this very attempt
select 1 from duetime_running as r join duetime_accepted as a on a.task = r.task
where r.id = :id and r.attempt = :attempt and r.worker = '' and a.sender = :worker

-- holder_of: who has this very attempt, who handed it over, and when it times out
select r.worker, a.sender, a.report_at, r.task from duetime_running as r
left join duetime_accepted as a on a.task = r.task and r.worker = '' where r.id = ? and r.attempt = ?

-- give_back_accepted: let the sender have an attempt again, so that its end counts as the sender's
update duetime_running set worker = ? where task = ?

-- settled_by_report: whether this attempt has ended as a report says it
select 1 from duetime_task as t where t.id = :id and (
    (t.state is not null and t.attempt = :attempt
        and t.outcome in ('succeeded', 'failed', 'fatal', 'retry_later', 'cancelled'))
    or exists (select 1 from duetime_attempt as a where a.task = t.seq and a.attempt = :attempt
        and a.outcome in ('succeeded', 'failed', 'fatal', 'retry_later', 'cancelled')))

-- hear_accepted: a report of an accepted attempt
update duetime_accepted set report_at = min(deadline_at, coalesce(:now + coalesce(:extend, silence), deadline_at))
where task = (select r.task from duetime_running as r where r.id = :id and r.attempt = :attempt and r.worker = '')
returning task, report_at

-- mark_accepted: how far an accepted attempt is, if that was said, and whether it has to stop
update duetime_running set progress = coalesce(:fraction, progress),
    progress_text = iif(:fraction is null, progress_text, :text)
where task = :task returning cancelling

-- withdrawals: accepted attempts of these handlers whose servers are to be told that they stop
select r.id, r.attempt, a.location, a.task
from duetime_accepted as a cross join duetime_running as r on r.task = a.task
cross join duetime_lane as l on l.id = r.lane
where a.withdrawing = 1 and l.handler in (select value from json_each(?)) limit ?

-- forget_location: somebody tells the server of this accepted attempt
update duetime_accepted set location = null, withdrawing = 0 where task = ?

-- overdue_ids: accepted attempts that have timed out
select r.id from duetime_accepted as a cross join duetime_running as r on r.task = a.task
where a.report_at <= ? order by a.report_at limit ?

-- open_attempts: these tasks, if they run, with who has them and when an accepted one times out
select t.id, l.handler, '', r.attempt, r.tries, r.crashes,
    r.due_at, t.due_at, t.submitted_at, t.submitted_by, t.expires_at, t.timeout, cast(t.retry as text), t.extras, t.key,
    nullif(l.collection, ''), l.priority, t.schedule, t.planned_at,
    (select max(value, 0) from duetime_fact where name = 'epoch'), r.claim, r.cancelling, r.claimed_at,
    nullif(r.worker, ''), a.report_at
from json_each(?) as i cross join duetime_running as r on r.id = i.value cross join duetime_task as t on t.seq = r.task
cross join duetime_lane as l on l.id = t.lane left join duetime_accepted as a on a.task = r.task and r.worker = ''
