"""Other people's files: `python -m tests.corpus FOLDER` compiles each kernel below a folder on both machines."""
