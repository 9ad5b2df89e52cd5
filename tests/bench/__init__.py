"""`make bench` and `make bench-peers`: benchmark this server and other engines in turn, under the same load."""
