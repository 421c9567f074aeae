"""What several tests share. No test imports from another test: it imports from here."""
