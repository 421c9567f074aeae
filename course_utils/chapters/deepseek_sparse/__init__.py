"""What the cells of chapter 05 call."""
