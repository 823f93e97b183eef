-- has_fts5: whether this SQLite was built with the module that searches words
select exists (select 1 from pragma_module_list where name = 'fts5')

-- has_words: whether the index of words has been made
select exists (select 1 from sqlite_master where type = 'table' and name = 'duetime_output_words')

-- create_words: the index of words, over the text of the chunks, which is not kept twice
create virtual table duetime_output_words using fts5 (text, content = 'duetime_output_chunk', content_rowid = 'id',
    tokenize = "unicode61 remove_diacritics 2")

-- fill_words: put all chunks into the index that were kept without it
insert into duetime_output_words (duetime_output_words) values ('rebuild')

-- begin_output: attempts whose first output comes, of tasks that exist
insert into duetime_output (task, attempt, size, whole, kept_at)
select t.seq, x.value ->> 1, 0, 0, :now from json_each(:attempts) as x join duetime_task as t on t.id = x.value ->> 0
    where true
on conflict (task, attempt) do nothing

-- output_sizes: how much is kept of some attempts, and whether it is all
select t.id, o.attempt, o.size, o.whole, o.number from json_each(:attempts) as x
join duetime_task as t on t.id = x.value ->> 0 join duetime_output as o on o.task = t.seq and o.attempt = x.value ->> 1

-- insert_chunk: a piece of output
insert into duetime_output_chunk (output, start, size, text) values (?, ?, ?, ?)

-- index_chunk: its words
insert into duetime_output_words (rowid, text) values (?, ?)

-- extend_output: say how much is kept now
update duetime_output set size = ?, whole = ? where number = ?

-- output_of_task: which attempts of a task have output
select o.attempt, o.size, o.whole, o.kept_at from duetime_output as o join duetime_task as t on t.seq = o.task
    where t.id = ? order by o.attempt

-- output_chunks: pieces of a task's output beyond a position
select o.attempt, c.start, c.text, o.whole and c.start + c.size = o.size
from duetime_task as t join duetime_output as o on o.task = t.seq join duetime_output_chunk as c on c.output = o.number
where t.id = :task and (:attempt is null or o.attempt = :attempt)
and (o.attempt > :after or (o.attempt = :after and c.start + c.size > :offset))
order by o.attempt, c.start limit :limit

-- count_word: how many pieces have a word, up to a bound
select count(*) from (select 1 from duetime_output_words as w where w.duetime_output_words match ? limit ?)

-- search_head: attempts with output, and the first piece that has the first word
select t.id, o.attempt, o.kept_at, o.number, (
    select c.text from duetime_output_chunk as c cross join duetime_output_words as w on w.rowid = c.id
    where c.output = o.number and w.duetime_output_words match :first order by c.start limit 1
)
from duetime_output as o join duetime_task as t on t.seq = o.task join duetime_lane as l on l.id = t.lane

-- search_word: that have a word which few have: all those are looked up once
o.number in (
    select c.output from duetime_output_words as w cross join duetime_output_chunk as c on c.id = w.rowid
        where w.duetime_output_words match :word
)

-- search_common: that have a word which many have: each one is asked, from the latest on, until a page is full
exists (
    select 1 from duetime_output_chunk as c cross join duetime_output_words as w on w.rowid = c.id
    where c.output = o.number and w.duetime_output_words match :word
)

-- search_after: whose output began at or after an instant
o.kept_at >= :after

-- search_before: whose output began before an instant
o.kept_at < :before

-- search_beyond: behind the page before
o.number < :number

-- search_order: a page of them, the latest first, which have the highest numbers
order by o.number desc limit :limit

-- only_logs: tasks with a word in their output which few have
t.seq in (
    select o.task from duetime_output_words as w cross join duetime_output_chunk as c on c.id = w.rowid
    join duetime_output as o on o.number = c.output where w.duetime_output_words match :word
)

-- only_common_logs: tasks with a word in their output which many have
exists (
    select 1 from duetime_output as o join duetime_output_chunk as c on c.output = o.number
        cross join duetime_output_words as w on w.rowid = c.id
    where o.task = t.seq and w.duetime_output_words match :word
)

-- numbers_of: attempts of tasks that have output
select json_group_array(o.number) from duetime_output as o where o.task in (select value from json_each(?))

-- forget_words: take the output of attempts out of the index
insert into duetime_output_words (duetime_output_words, rowid, text)
select 'delete', c.id, c.text from duetime_output_chunk as c where c.output in (select value from json_each(?))

-- delete_chunks: the output of attempts
delete from duetime_output_chunk where output in (select value from json_each(?))

-- delete_output: and that they had any
delete from duetime_output where number in (select value from json_each(?))

-- numbers_between: attempts of a task that have output, between two of them
select json_group_array(o.number) from duetime_output as o where o.task = ? and o.attempt > ? and o.attempt <= ?

-- ghost_output: output of tasks that are gone
select distinct o.task from duetime_output as o where not exists (select 1 from duetime_task as t where t.seq = o.task)
