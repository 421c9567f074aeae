"""What the cells of chapter 01 call."""
