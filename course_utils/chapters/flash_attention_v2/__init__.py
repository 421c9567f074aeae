"""What the cells of chapter 03 call."""
