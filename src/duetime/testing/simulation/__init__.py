"""The real client, workers, duties and schedules in virtual time, with faults."""
