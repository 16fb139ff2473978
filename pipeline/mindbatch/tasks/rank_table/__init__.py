"""`mindbatch rank-table`: writes the table of one server or several, checks tables, merges them."""
