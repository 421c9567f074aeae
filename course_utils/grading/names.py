"""Names that more than one exercise gives in Python: the same mistake has the same name everywhere, in tables, too."""

# The online softmax
NO_MAXIMUM = "the maximum is not subtracted"
L_NOT_RESCALED = "l is not rescaled when the maximum changes"
O_NOT_RESCALED = "O is not rescaled when the maximum changes"
NOT_DIVIDED = "the division by l is missing"
EMPTY_ROW_IS_NAN = "a row without keys gives NaN"

# Scores
SCALE_MISSING = "the scale is missing"
SCALE_NOT_THE_ARGUMENT = "the scale is taken to be 1/√d, not the argument"

# Which keys a query sees
LAST_TILE_LEFT_OUT = "the last, ragged tile is left out"
LAST_KEY_LEFT_OUT = "the last key is left out"

# Which rows are read and written
HEAD_ZERO_READ = "every head reads head 0"
PLACE_FOR_KEY = "the place in the list is taken for the key"

# What the sanitizer finds, where the exercise has no name of its own for it
DIFFERENT_BARRIERS = "threads of a block wait at different barriers"
NEVER_WRITTEN = "shared memory is read that nobody has written"
PIECE_NEVER_WRITTEN = "a piece of the tile is read that nobody has written"
