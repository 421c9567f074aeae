"""Names of mistakes that students make in more than one exercise: the same mistake has the same name everywhere."""

# The online softmax
NO_MAXIMUM = "the maximum is not subtracted"
MAXIMUM_FROM_ZERO = "the maximum starts at 0 instead of −∞"
MAXIMUM_FROM_FINITE = "the maximum starts at a finite number instead of −∞"
FIRST_KEYS_SCORE = "the first key's score is subtracted, not the largest"
MAXIMUM_OF_THE_TILE = "m is the maximum of the tile, not the largest so far"
L_NOT_RESCALED = "l is not rescaled when the maximum changes"
O_NOT_RESCALED = "O is not rescaled when the maximum changes"
NEITHER_RESCALED = "neither l nor O is rescaled when the maximum changes"
FACTOR_UPSIDE_DOWN = "the rescale factor is upside down"
NOT_DIVIDED = "the division by l is missing"
EMPTY_ROW_IS_NAN = "a row without keys gives NaN"
ONE_WARP_ONLY = "only one warp's part is merged"
HALF_WARP = "the shuffles put only half of a warp together"

# Scores
SCALE_MISSING = "the scale is missing"
SCALE_TWICE = "the scale is applied twice"
SCALE_NOT_THE_ARGUMENT = "the scale is taken to be 1/√d, not the argument"
FIRST_32_COLUMNS = "only the first 32 columns of Q and K are multiplied"
LAST_COLUMN_LEFT_OUT = "the last column of Q and K is left out"

# Which keys a query sees
MASK_MISSING = "the causal mask is missing"
MASK_UNASKED = "the causal mask is there without being asked for"
MASK_TOP_LEFT = "the mask is aligned at the top left"
SHIFT_WRONG_SIGN = "the shift of the mask has the wrong sign"
EARLIER_KEYS_HIDDEN = "the mask hides the earlier keys instead of the later"
SKIPPING_UNSHIFTED = "tiles are skipped as if L_q and L_k were equal"
OWN_KEY_HIDDEN = "the mask is off by one: a query does not see its own key"
NEXT_KEY_SEEN = "the mask is off by one: a query sees the next key"
HIDDEN_IS_ZERO = "a hidden score is 0, not −∞"
HIDDEN_IS_FINITE = "a hidden key has a finite score: a row without keys gives a mean of V"
TAIL_COUNTS = "keys past the end count as score 0"
LAST_TILE_LEFT_OUT = "the last, ragged tile is left out"
LAST_KEY_LEFT_OUT = "the last key is left out"

# Which rows are read and written
HEAD_ZERO_READ = "every head reads head 0"
HEAD_ZERO_OF_Q = f"{HEAD_ZERO_READ} of Q"
HEAD_ZERO_OF_K = f"{HEAD_ZERO_READ} of K"
HEAD_ZERO_OF_V = f"{HEAD_ZERO_READ} of V"
BATCH_ZERO_READ = "every sequence of the batch reads the first one"
PLACE_FOR_KEY = "the place in the list is taken for the key"

# LSE
LSE_LACKS_M = "LSE lacks m"
LSE_LACKS_LOG = "LSE lacks the logarithm"
LSE_IS_M = "LSE is the maximum"
LSE_BASE_2 = "LSE is in base 2"
LSE_EMPTY_ROW = "LSE of a row without keys is not −∞"

# What the sanitizer finds, where the exercise has no name of its own for it
NOT_ALL_ARRIVE = "not all threads come to a barrier or shuffle"
DIFFERENT_BARRIERS = "threads of a block wait at different barriers"
NEVER_WRITTEN = "shared memory is read that nobody has written"
PIECE_NEVER_WRITTEN = "a piece of the tile is read that nobody has written"
