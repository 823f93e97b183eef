-- add_intents: what a caller's transaction asks for, in its order
insert into duetime.intent (task, edits, due_at, priority, collection, payload)
select i.task, i.edits, i.due_at, i.priority, i.collection, i.payload
from unnest($1::uuid[], $2::boolean[], $3::bigint[], $4::smallint[], $5::text[], $6::text[]) with ordinality
    as i (task, edits, due_at, priority, collection, payload, index)
order by i.index

-- first_intents: the oldest committed ones
select number, task::text, edits, due_at, priority, collection, payload from duetime.intent order by number
    limit $1::bigint

-- intents_of: those about one task
select number, task::text, edits, due_at, priority, collection, payload from duetime.intent where task = $1::uuid
order by number

-- lock_intents: those that nobody else deals with
select number from duetime.intent where number = any ($1::bigint[]) order by number for update skip locked

-- delete_intents: those that were carried out
delete from duetime.intent where number = any ($1::bigint[])
