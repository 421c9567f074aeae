"""Pictures of chapter 02."""
