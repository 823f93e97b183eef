-- note_figure_source: begin a write of a process, unless it is a repeat
insert into duetime_figure_source (source, number, written_at) values (:source, :number, :now)
on conflict (source) do update set number = excluded.number, written_at = excluded.written_at
    where number < excluded.number

-- add_figure: add to what a process has counted
insert into duetime_figure (source, name, handler, part, count) values (?, ?, ?, ?, ?)
on conflict (source, name, handler, part) do update set count = count + excluded.count

-- sum_figures: what all processes have counted together
select name, handler, part, sum(count) from duetime_figure group by name, handler, part

-- fold_figures: add up what silent processes have counted
insert into duetime_figure (source, name, handler, part, count)
select '', name, handler, part, sum(count) from duetime_figure
where source in (select source from duetime_figure_source where written_at < ?) group by name, handler, part
on conflict (source, name, handler, part) do update set count = count + excluded.count

-- delete_folded: the rows that were added up
delete from duetime_figure where source in (select source from duetime_figure_source where written_at < ?)

-- delete_silent: the processes whose rows were added up
delete from duetime_figure_source where written_at < ?
