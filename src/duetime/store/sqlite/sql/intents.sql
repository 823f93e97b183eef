-- insert_intent: what a caller's transaction asks for
insert into duetime_intent (task, edits, due_at, priority, collection, payload) values (?, ?, ?, ?, ?, ?)

-- first_intents: the oldest ones
select number, task, edits, due_at, priority, collection, payload from duetime_intent order by number limit ?

-- intents_of: those about one task
select number, task, edits, due_at, priority, collection, payload from duetime_intent where task = ? order by number

-- delete_intents: those that were carried out, which are the oldest
delete from duetime_intent where number <= ?
