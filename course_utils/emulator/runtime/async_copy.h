// What the copy engine asks of cp.async.
#pragma once

void emu_finish_copies(unsigned groups_in_flight);   // of the thread emu_current, which need not be the one that runs
