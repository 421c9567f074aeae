"""How the course is read: the sections of its chapters, what each needs of others, and how long reading takes."""
