"""What the cells of chapter 02 call."""
