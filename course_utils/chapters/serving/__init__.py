"""What the cells of chapter 06 call."""
