-- Guests: workers in other languages, which a server speaks for. `guest_lease` is how many seconds a guest counts as alive without a
-- beat; null: not a guest. `lease` of a guest is 0, because claims wait for the longest lease after a fail-over, and a guest cannot be
-- stopped by waiting.
alter table duetime.worker add column guest_lease double precision;
