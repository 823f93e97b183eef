"""`duetime demo`: a shop whose unpaid orders expire on time although a worker is killed."""
