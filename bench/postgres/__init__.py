"""The figures on PostgreSQL: Duetime and its peers on one server, beside each other in every round."""
