"""`duetime dev`: server and worker in one process that is started again when the code changes."""
