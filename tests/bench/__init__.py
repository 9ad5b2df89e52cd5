"""`make bench` and `make bench-peers`: this server and other engines under the same load, in turn, on one machine."""
