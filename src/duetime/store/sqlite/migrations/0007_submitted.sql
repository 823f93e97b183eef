-- More single facts, so that lists by the time of submitting know where to begin. Tasks are numbered in the order of submitting, and
-- `submitted_at` rises with the number unless the clock was set back. Of two tasks the one with the lower number was submitted at
-- submitted_high or before, or not after the other; and never by more than submitted_back after it.
insert into duetime_fact select 'submitted_high', coalesce(max(submitted_at), 0) from duetime_task;
insert into duetime_fact select 'submitted_back', coalesce(max(s.high - s.submitted_at), 0)
from (select submitted_at, max(submitted_at) over (order by seq) as high from duetime_task) as s;
