"""Keeps a submission apart: bubblewrap, or limits and Landlock, around a child process that returns bytes."""
