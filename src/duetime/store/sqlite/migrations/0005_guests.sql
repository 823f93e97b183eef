-- Guests: workers in other languages, which a server speaks for. No process of theirs holds a lock here, so their beats are in their
-- rows. `lease` is how many seconds a guest counts as alive without a beat; null: not a guest, its file tells.
alter table duetime_worker add column lease real;
alter table duetime_worker add column beat integer not null default 0;
alter table duetime_worker add column beat_at integer;
