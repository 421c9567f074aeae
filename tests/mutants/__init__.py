"""Mistakes planted in a copy of the course, one at a time, and the test in `make test` that must see each."""
