"""What the cells of a chapter call, a folder for each chapter; what several chapters call lies beside the folders."""
