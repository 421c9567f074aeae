"""What the cells of a chapter call: counters and recordings, put together into the chapter's pictures and tables."""
