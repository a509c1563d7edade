"""One module per question; `ALL` is the order of the table."""
